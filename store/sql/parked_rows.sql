-- What waits in some parked keys, in order, as requests to run it; those that the owner has already are left out.
SELECT -d.id, k.interval_id, 'unpark', d.slot, d.key, NULL, d.id,
       d.stream, d.record_id, d.value, d.ts, d.attempts, d.parked, d.watermark, d.stamp
FROM unnest(
    %(ids)s::bigint[], %(computations)s::smallint[], %(slots)s::integer[], %(keys)s::text[]
) AS k (interval_id, computation, slot, key)
JOIN {dead_letter} AS d
    ON d.parked = 'waiting' AND d.computation = k.computation AND d.slot = k.slot AND d.key = k.key COLLATE "C"
WHERE d.id <> ALL(%(taken)s::bigint[])
ORDER BY d.id
LIMIT %(limit)s
