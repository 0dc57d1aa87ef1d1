-- Takes one's own intervals once more, after a commit failed or its fate is unknown: only
-- those that nobody else has claimed meanwhile. A zombie gets none back.
UPDATE {key_interval} AS k
SET sequencer = nextval(%(sequence)s::regclass), split_at = NULL, merge_with = NULL
WHERE k.id = ANY(%(interval_ids)s::bigint[]) AND k.owner = %(owner)s
RETURNING k.id, k.sequencer
