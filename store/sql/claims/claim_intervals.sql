-- Claims intervals: raises their sequencers first, so that every commit of the former owner is waited for
-- or fails (I4). Nothing is read before this transaction has committed. It skips intervals that newer code
-- has owned; a worker that is not registered counts as the oldest code. It ends wishes to split or merge,
-- which were decided for the intervals as they were before.
WITH claimer AS (
    SELECT coalesce((SELECT w.generation FROM {worker} AS w WHERE w.id = %(owner)s::uuid), 1)
        AS generation
)
UPDATE {key_interval} AS k
SET sequencer = nextval(%(sequence)s::regclass), owner = %(owner)s::uuid,
    generation = c.generation, split_at = NULL, merge_with = NULL
FROM claimer AS c
WHERE k.id = ANY(%(interval_ids)s::bigint[]) AND k.generation <= c.generation
RETURNING k.id, k.sequencer
