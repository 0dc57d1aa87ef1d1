-- The stored entries of some keys of one computation, at most `limit` for each key: a key with fewer rows
-- is in memory as a whole.
SELECT x.position, s.entry, s.value::text, s.version
FROM unnest(%(slot)s::integer[], %(key)s::text[]) WITH ORDINALITY AS x (slot, key, position)
CROSS JOIN LATERAL (
    SELECT s.entry, s.value, s.version FROM {state} AS s
    WHERE s.slot = x.slot AND s.computation = %(computation)s AND s.key = x.key
    ORDER BY s.entry
    LIMIT %(limit)s
) AS s
