-- Values that another version of a state's type than the code's has written, at most `most` for each
-- computation, collection and version. It reads at most `rows` rows from each of some slots on, and the same number of
-- each interval's tail: all of a small pipeline, a part of a large one.
WITH tail AS (
    SELECT DISTINCT ON (t.computation, t.slot, t.key, t.entry)
        t.computation, t.slot, t.key, t.entry, t.value, t.version
    FROM {fold} AS f
    CROSS JOIN LATERAL (
        SELECT r.* FROM {state_changes} AS r
        WHERE r.interval_id = f.interval_id AND r.n > f.through
        ORDER BY r.n DESC LIMIT %(rows)s
    ) AS t
    ORDER BY t.computation, t.slot, t.key, t.entry, t.n DESC
),
folded AS (
    SELECT DISTINCT s.computation, s.slot, s.key, s.entry, s.value, s.version
    FROM unnest(%(slots)s::integer[]) AS b (slot)
    CROSS JOIN LATERAL (
        SELECT r.* FROM {state} AS r
        WHERE r.slot >= b.slot
        ORDER BY r.slot, r.computation, r.key, r.entry LIMIT %(rows)s
    ) AS s
    WHERE NOT EXISTS (
        SELECT FROM tail AS t
        WHERE t.computation = s.computation AND t.slot = s.slot AND t.key = s.key AND t.entry = s.entry
    )
)
SELECT o.name, o.key, o.entry, o.version, o.value
FROM (
    SELECT
        c.name, s.key, s.entry, s.version, s.value::text AS value,
        row_number() OVER (
            PARTITION BY s.computation, s.version, split_part(s.entry, '/', 1) ORDER BY s.slot, s.key, s.entry
        ) AS place
    FROM (SELECT * FROM tail UNION ALL SELECT * FROM folded) AS s
    JOIN {computation} AS c ON c.id = s.computation
    JOIN unnest(%(names)s::text[], %(versions)s::integer[]) AS w (name, version) ON w.name = c.name
    WHERE s.version <> w.version AND s.value IS NOT NULL
) AS o
WHERE o.place <= %(most)s
ORDER BY o.name, o.version, o.place
