-- Claims this worker's own intervals again, after a commit failed or had no answer: only intervals that no
-- other worker has claimed. A zombie gets none back.
UPDATE {key_interval} AS k
SET sequencer = nextval(%(sequence)s::regclass), split_at = NULL, merge_with = NULL
WHERE k.id = ANY(%(interval_ids)s::bigint[]) AND k.owner = %(owner)s
RETURNING k.id, k.sequencer
