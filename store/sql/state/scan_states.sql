-- The stored states of one computation in some slots, in order, at most `limit` entries. One step down the index for each
-- slot, whatever other computations keep there.
SELECT s.slot, s.key, s.entry, s.value::text, s.version
FROM generate_series(%(slot_from)s::integer, %(slot_to)s::integer - 1) AS x (slot)
CROSS JOIN LATERAL (
    SELECT r.slot, r.key, r.entry, r.value, r.version FROM {state} AS r
    WHERE r.slot = x.slot AND r.computation = %(computation)s
    ORDER BY r.key, r.entry
    LIMIT %(limit)s
) AS s
LIMIT %(limit)s
