-- The first rows of some parked keys, in their order, as requests to run them; those that the owner has already are left
-- out.
SELECT -d.id, k.interval_id, 'unpark', d.slot, d.key, NULL, d.id,
       d.stream, d.record_id, d.value, d.ts, d.attempts, d.parked, d.watermark, d.stamp, d.version
FROM unnest(
    %(ids)s::bigint[], %(computations)s::smallint[], %(slots)s::integer[], %(keys)s::text[]
) AS k (interval_id, computation, slot, key)
CROSS JOIN LATERAL (
    SELECT * FROM {dead_letter} AS l
    WHERE l.parked = 'waiting' AND l.computation = k.computation AND l.slot = k.slot AND l.key = k.key COLLATE "C"
      AND l.id <> ALL(%(taken)s::bigint[])
    ORDER BY l.id
    LIMIT %(limit)s
) AS d
ORDER BY d.id
