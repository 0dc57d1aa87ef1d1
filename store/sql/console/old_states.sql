-- One page of stored values after a place, in the order of the table: those that another version of their type
-- than the code's has written, and the last row of the page, whichever it is. A value in an interval that
-- former code may still own (`is_free` is false) has to stay as it is.
WITH page AS MATERIALIZED (
    SELECT s.slot, s.computation, s.key, s.entry, s.version, s.value, s.xmin
    FROM {state} AS s
    WHERE (s.slot, s.computation, s.key, s.entry)
        > (%(slot)s::integer, %(computation)s::smallint, %(key)s::text, %(entry)s::text)
    ORDER BY s.slot, s.computation, s.key, s.entry
    LIMIT %(rows)s
)
SELECT p.slot, p.computation, p.key, p.entry, p.version, p.xmin::text,
    CASE WHEN w.computation IS NOT NULL THEN p.value::text END,
    coalesce(w.since <= k.generation, false)
FROM page AS p
LEFT JOIN unnest(%(computations)s::smallint[], %(versions)s::smallint[], %(since)s::integer[])
    AS w (computation, version, since) ON w.computation = p.computation AND w.version <> p.version
LEFT JOIN {key_interval} AS k
    ON k.computation = w.computation AND p.slot >= k.slot_from AND p.slot < k.slot_to
WHERE w.computation IS NOT NULL
    OR (p.slot, p.computation, p.key, p.entry)
        = (SELECT l.slot, l.computation, l.key, l.entry FROM page AS l
           ORDER BY l.slot DESC, l.computation DESC, l.key DESC, l.entry DESC LIMIT 1)
ORDER BY p.slot, p.computation, p.key, p.entry
