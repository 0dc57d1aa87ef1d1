-- Takes all intervals from their owners: commits that are under way are refused (I3).
UPDATE {key_interval} SET sequencer = nextval({sequence}::regclass), owner = NULL, wanted_by = NULL, split_at = NULL,
    merge_with = NULL
