-- The parts of a merged interval. Their chains end with them: nothing reads a chain but by
-- its interval, and its rows go with their buckets.
WITH unfolded AS (
    DELETE FROM {fold} WHERE interval_id = ANY(%(interval_ids)s::bigint[])
)
DELETE FROM {key_interval} WHERE id = ANY(%(interval_ids)s::bigint[])
