-- A page of the pending timers and holds of one key, the soonest first, and the number of all. As {timers_of}, which puts
-- the times of all of them into words.
WITH tail AS MATERIALIZED (
    SELECT DISTINCT ON (c.kind, c.tag) c.kind, c.tag, c.due, c.hold, c.set_at
    FROM {fold} AS f
    CROSS JOIN LATERAL (
        SELECT * FROM {timer_change} AS r
        WHERE r.interval_id = f.interval_id AND r.n > f.through AND r.n < f.through + 1000000000
        OFFSET 0
    ) AS c
    WHERE f.interval_id = %(interval_id)s
      AND c.slot = %(slot)s AND c.computation = %(computation_id)s AND c.key = %(key)s
    ORDER BY c.kind, c.tag, c.n DESC
), merged AS MATERIALIZED (
    SELECT s.kind, s.tag, s.due, s.hold, s.set_at
    FROM {timer} AS s
    WHERE s.slot = %(slot)s AND s.computation = %(computation_id)s AND s.key = %(key)s
      AND (s.kind, s.tag) NOT IN (SELECT t.kind, t.tag FROM tail AS t)
    UNION ALL
    SELECT t.kind, t.tag, t.due, t.hold, t.set_at FROM tail AS t WHERE t.due IS NOT NULL
)
SELECT m.kind, m.tag, m.due, {micros_to_time}(m.due)::text, {micros_to_time}(m.hold)::text,
       {micros_to_time}(m.set_at)::text, c.timers
FROM (SELECT count(*) AS timers FROM merged) AS c
LEFT JOIN (
    SELECT * FROM merged AS g
    WHERE %(due_after)s::bigint IS NULL
       OR (g.due, g.kind, g.tag) > (%(due_after)s::bigint, %(kind_after)s, %(tag_after)s)
    ORDER BY g.due, g.kind, g.tag
    LIMIT %(limit)s::bigint + 1 OFFSET %(skip)s
) AS m ON true
ORDER BY m.due, m.kind, m.tag
