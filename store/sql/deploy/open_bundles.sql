-- Computations with an open numbered bundle, which is not delivered yet.
SELECT DISTINCT c.name
FROM {computation} AS c
JOIN {key_interval} AS k ON k.computation = c.id
CROSS JOIN LATERAL (
    SELECT r.position FROM {commit_record} AS r
    WHERE r.interval_id = k.id ORDER BY r.n DESC LIMIT 1
) AS l
WHERE jsonb_array_length(l.position -> 'bundle' -> 'open') > 0
