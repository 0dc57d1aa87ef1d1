-- The stored states of one computation in some slots, in order, at most `limit` entries. One step down the index for each
-- slot that has any state, and one more for each of these, whatever other computations keep there.
WITH RECURSIVE used AS (
    (
        SELECT r.slot FROM {state} AS r
        WHERE r.slot >= %(slot_from)s AND r.slot < %(slot_to)s
        ORDER BY r.slot
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT r.slot FROM {state} AS r
        WHERE r.slot > u.slot AND r.slot < %(slot_to)s
        ORDER BY r.slot
        LIMIT 1
    )
    FROM used AS u
    WHERE u.slot IS NOT NULL
)
SELECT s.slot, s.key, s.entry, s.value::text, s.version
FROM used AS x
CROSS JOIN LATERAL (
    SELECT r.slot, r.key, r.entry, r.value, r.version FROM {state} AS r
    WHERE r.slot = x.slot AND r.computation = %(computation)s
    ORDER BY r.key, r.entry
    LIMIT %(limit)s
) AS s
LIMIT %(limit)s
