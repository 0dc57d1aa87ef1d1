-- The parked keys of the claimed intervals, with the size of what waits in each.
SELECT k.id, d.computation, d.slot, d.key, count(*), sum(length(d.value)), bool_or(d.parked = 'failed'),
       array_agg(d.ts)
FROM {key_interval} AS k
JOIN {dead_letter} AS d
    ON d.parked IS NOT NULL AND d.computation = k.computation AND d.slot >= k.slot_from AND d.slot < k.slot_to
WHERE k.id = ANY(%(interval_ids)s::bigint[])
GROUP BY k.id, d.computation, d.slot, d.key
