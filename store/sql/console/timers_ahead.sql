-- Timers by step, kind and time to come, as the folded table has them and what the changes that are not folded add to that.
-- `source` says which folded ones are counted: all; some blocks of the table; or, by the index, those of the counted units,
-- up to a limit. The place is the number of whole units between the clock of a timer and the time for which it is due; -1: it
-- is due already; `places`: later; `places` + 1: at the end of time; `places` + 2: its clock does not run yet.
WITH clocks AS MATERIALIZED (
    SELECT r.computation, k.kind, CASE k.kind WHEN 'wall' THEN %(now)s::bigint ELSE r.clock END AS clock
    FROM unnest(%(computations)s::smallint[], %(clocks)s::bigint[]) AS r (computation, clock)
    CROSS JOIN (VALUES ('watermark'), ('wall')) AS k (kind)
), tail AS MATERIALIZED (
    SELECT DISTINCT ON (x.slot, x.computation, x.key, x.kind, x.tag) x.slot, x.computation, x.key, x.kind, x.tag, x.due
    FROM {fold} AS f
    CROSS JOIN LATERAL (
        SELECT * FROM {timer_change} AS c
        WHERE c.interval_id = f.interval_id AND c.n > f.through AND c.n < f.through + 1000000000
        OFFSET 0
    ) AS x
    WHERE %(with_changes)s
    ORDER BY x.slot, x.computation, x.key, x.kind, x.tag, x.n DESC
), counted AS (
    SELECT s.computation, s.kind, s.due, 1 AS folded, 0 AS changed FROM {timer} AS s WHERE %(source)s = 'all'
    UNION ALL
    SELECT s.computation, s.kind, s.due, 1, 0
    FROM {timer} AS s TABLESAMPLE SYSTEM (%(percent)s) REPEATABLE (0)
    WHERE %(source)s = 'blocks'
    UNION ALL
    (
        SELECT r.computation, r.kind, s.due, 1, 0
        FROM clocks AS r
        CROSS JOIN LATERAL (
            SELECT t.due FROM {timer} AS t
            WHERE t.computation = r.computation AND t.kind = r.kind AND t.due > r.clock
              AND t.due <= r.clock + %(places)s * %(unit)s::bigint
            OFFSET 0
        ) AS s
        WHERE %(source)s = 'index'
        LIMIT %(most_timers)s::bigint + 1
    )
    UNION ALL
    SELECT s.computation, s.kind, s.due, 0, -1
    FROM tail AS t
    JOIN {timer} AS s ON s.slot = t.slot AND s.computation = t.computation AND s.key = t.key
        AND s.kind = t.kind AND s.tag = t.tag
    UNION ALL
    SELECT t.computation, t.kind, t.due, 0, 1 FROM tail AS t WHERE t.due IS NOT NULL
)
SELECT p.computation, p.kind, p.place, sum(p.folded), sum(p.changed)
FROM (
    SELECT c.computation, c.kind, c.folded, c.changed,
           CASE
               WHEN c.kind = 'hold' THEN -1
               WHEN c.due >= %(end_of_time)s THEN %(places)s + 1
               WHEN c.kind = 'wall' THEN
                   least(greatest((c.due - %(now)s::bigint - 1) / %(unit)s::float8, -1), %(places)s)
               WHEN r.clock <= %(begin_of_time)s THEN %(places)s + 2
               ELSE least(greatest((c.due - r.clock - 1) / %(unit)s::float8, -1), %(places)s)
           END AS distance
    FROM counted AS c
    JOIN unnest(%(computations)s::smallint[], %(clocks)s::bigint[]) AS r (computation, clock)
        ON r.computation = c.computation
    OFFSET 0
) AS d
CROSS JOIN LATERAL (
    SELECT d.computation, d.kind, d.folded, d.changed, floor(d.distance)::integer AS place
) AS p
GROUP BY p.computation, p.kind, p.place
