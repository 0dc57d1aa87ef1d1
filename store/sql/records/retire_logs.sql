-- Deletes drained logs, which are never read again. A partition's log stays, since it tells that the partition is known.
WITH ended AS (
    DELETE FROM {log} WHERE id = ANY(%(logs)s::bigint[]) AND source IS NULL
)
UPDATE {log} SET retired = true WHERE id = ANY(%(logs)s::bigint[]) AND source IS NOT NULL
