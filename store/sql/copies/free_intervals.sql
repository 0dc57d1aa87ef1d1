-- Nobody owns the intervals of a copy.
UPDATE {key_interval} SET owner = NULL, wanted_by = NULL, split_at = NULL, merge_with = NULL
