-- Timers that are due and have not fired, by step and kind, and what each waits for; how many of them are folded; and the
-- longest time for which one has been due, NULL at the end of event time. Of each step and kind the first folded ones are read
-- that are due in any interval, up to a limit; those that are not due in their own are early.
WITH intervals AS MATERIALIZED (
    SELECT k.computation, k.slot_from, k.slot_to, l.input_watermark, w.id IS NOT NULL AS is_owned
    FROM {key_interval} AS k
    JOIN {latest_commits} AS l ON l.interval_id = k.id
    LEFT JOIN {worker} AS w ON w.id = k.owner AND NOT w.stopped AND w.lease_until > now()
), clocks AS (
    SELECT i.computation, 'watermark' AS kind, max(i.input_watermark) AS clock FROM intervals AS i GROUP BY i.computation
    UNION ALL
    SELECT DISTINCT i.computation, 'wall', %(now)s::bigint FROM intervals AS i
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
), overdue AS (
    SELECT c.computation, c.kind, d.slot, d.key, d.due, true AS folded
    FROM clocks AS c
    CROSS JOIN LATERAL (
        SELECT s.slot, s.key, s.due FROM {timer} AS s
        WHERE s.computation = c.computation AND s.kind = c.kind AND s.due <= c.clock
          AND (s.computation, s.kind, s.slot, s.key, s.tag)
              NOT IN (SELECT x.computation, x.kind, x.slot, x.key, x.tag FROM tail AS x)
        ORDER BY s.due, s.slot, s.key, s.tag
        LIMIT %(most_overdue)s::bigint
    ) AS d
    UNION ALL
    SELECT c.computation, c.kind, x.slot, x.key, x.due, false
    FROM clocks AS c
    JOIN tail AS x ON x.computation = c.computation AND x.kind = c.kind AND x.due <= c.clock
)
SELECT w.computation, w.kind, w.reason, count(*), count(*) FILTER (WHERE w.folded),
       max(w.clock - w.due) FILTER (WHERE w.clock < %(end_of_time)s)
FROM (
    SELECT o.computation, o.kind, o.due, o.folded, CASE o.kind WHEN 'wall' THEN %(now)s::bigint ELSE i.input_watermark END AS clock,
           CASE
               WHEN o.kind = 'watermark' AND o.due > i.input_watermark THEN 'early'
               WHEN NOT i.is_owned THEN 'unowned'
               WHEN EXISTS (
                   SELECT FROM {dead_letter} AS d
                   WHERE d.parked IS NOT NULL AND d.computation = o.computation AND d.slot = o.slot AND d.key = o.key
               ) THEN 'parked'
               ELSE 'owner'
           END AS reason
    FROM overdue AS o
    JOIN intervals AS i ON i.computation = o.computation AND i.slot_from <= o.slot AND o.slot < i.slot_to
) AS w
GROUP BY w.computation, w.kind, w.reason
ORDER BY w.computation, w.kind, w.reason
