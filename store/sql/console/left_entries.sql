-- Which of some collections of states still have entries. It reads at most `rows` rows from each of some slots
-- on, and the same number of each interval's tail: all of a small pipeline, a part of a large one.
WITH entries AS (
    SELECT s.computation, split_part(s.entry, '/', 1) AS collection
    FROM unnest(%(slots)s::integer[]) AS b (slot)
    CROSS JOIN LATERAL (
        SELECT r.computation, r.entry FROM {state} AS r
        WHERE r.slot >= b.slot
        ORDER BY r.slot, r.computation, r.key, r.entry LIMIT %(rows)s
    ) AS s
    UNION ALL
    SELECT t.computation, split_part(t.entry, '/', 1)
    FROM {fold} AS f
    CROSS JOIN LATERAL (
        SELECT r.computation, r.entry FROM {state_changes} AS r
        WHERE r.interval_id = f.interval_id AND r.n > f.through AND r.value IS NOT NULL
        ORDER BY r.n DESC LIMIT %(rows)s
    ) AS t
)
SELECT DISTINCT c.name, w.collection
FROM unnest(%(names)s::text[], %(collections)s::text[]) AS w (name, collection)
JOIN {computation} AS c ON c.name = w.name
JOIN entries AS e ON e.computation = c.id AND e.collection = w.collection
ORDER BY c.name, w.collection
