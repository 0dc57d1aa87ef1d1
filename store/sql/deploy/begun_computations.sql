-- Computations that have processed a record or timer: they may have state.
SELECT DISTINCT c.name
FROM {computation} AS c
JOIN {key_interval} AS k ON k.computation = c.id
CROSS JOIN LATERAL (
    SELECT r.counters FROM {commit_record} AS r
    WHERE r.interval_id = k.id ORDER BY r.n DESC LIMIT 1
) AS l
WHERE l.counters ? 'processed'
