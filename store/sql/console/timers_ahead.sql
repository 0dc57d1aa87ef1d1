-- Timers by step, kind and time to come: of some blocks of the table, each of which stands for `weight`, with the changes
-- that are not folded. The place is the number of whole units between the clock of the timer and the time for which it is
-- due; -1: it is due already; `places`: later; `places` + 1: at the end of time; `places` + 2: its clock does not run yet.
WITH tail AS MATERIALIZED (
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
    SELECT s.computation, s.kind, s.due, %(weight)s::float8 AS timers
    FROM {timer} AS s TABLESAMPLE SYSTEM (%(percent)s) REPEATABLE (0)
    UNION ALL
    SELECT s.computation, s.kind, s.due, -1
    FROM tail AS t
    JOIN {timer} AS s ON s.slot = t.slot AND s.computation = t.computation AND s.key = t.key
        AND s.kind = t.kind AND s.tag = t.tag
    UNION ALL
    SELECT t.computation, t.kind, t.due, 1 FROM tail AS t WHERE t.due IS NOT NULL
)
SELECT p.computation, p.kind, p.place, sum(p.timers)
FROM (
    SELECT c.computation, c.kind, c.timers,
           CASE
               WHEN c.kind = 'hold' THEN -1
               WHEN c.due >= %(end_of_time)s THEN %(places)s + 1
               WHEN c.kind = 'watermark' AND r.clock <= %(begin_of_time)s THEN %(places)s + 2
               ELSE least(
                   greatest((c.due - CASE c.kind WHEN 'wall' THEN %(now)s ELSE r.clock END - 1) / %(unit)s::float8, -1),
                   %(places)s
               )
           END AS distance
    FROM counted AS c
    JOIN unnest(%(computations)s::smallint[], %(clocks)s::bigint[]) AS r (computation, clock)
        ON r.computation = c.computation
) AS d
CROSS JOIN LATERAL (SELECT d.computation, d.kind, d.timers, floor(d.distance)::integer AS place) AS p
GROUP BY p.computation, p.kind, p.place
