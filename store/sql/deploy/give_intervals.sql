-- Takes all intervals from their owners, whose later commits fail (I3, I4), and gives them to code of a generation, or to
-- nobody: while the pipeline runs on Spark they are of a generation that no code has.
UPDATE {key_interval}
SET sequencer = nextval(%(sequence)s::regclass), owner = NULL, wanted_by = NULL, split_at = NULL,
    merge_with = NULL, generation = %(generation)s
