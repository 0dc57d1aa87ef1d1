-- Live logs of the claimed intervals.
SELECT id, interval_id, source FROM {log}
WHERE interval_id = ANY(%(interval_ids)s::bigint[]) AND NOT retired
ORDER BY id
