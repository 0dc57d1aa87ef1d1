-- Takes intervals over: raises their sequencers first, which waits for or fails every
-- commit of the owner before (I4). Only after this transaction may anything be read. None that
-- newer code has had; a worker that nobody remembers counts as the oldest there is. Wishes to cut
-- were decided from how it was; they end here.
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
