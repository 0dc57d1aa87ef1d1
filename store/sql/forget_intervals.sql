-- Deletes the parts of a merged interval. Chains are read by interval only, so theirs end here; their rows
-- are dropped with their buckets.
WITH unfolded AS (
    DELETE FROM {fold} WHERE interval_id = ANY(%(interval_ids)s::bigint[])
)
DELETE FROM {key_interval} WHERE id = ANY(%(interval_ids)s::bigint[])
