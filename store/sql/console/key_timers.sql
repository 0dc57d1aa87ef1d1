-- A page of the pending timers and holds of one key, the soonest first, and the number of all. As {timers_of}, which puts
-- the times of all of them into words.
WITH sought AS MATERIALIZED (
    SELECT c.id AS computation, k.id AS interval_id
    FROM {computation} AS c
    LEFT JOIN {key_interval} AS k ON k.computation = c.id AND k.slot_from <= %(slot)s AND %(slot)s < k.slot_to
    WHERE c.name = %(computation)s AND c.removed_at IS NULL
), tail AS MATERIALIZED (
    SELECT DISTINCT ON (c.kind, c.tag) c.kind, c.tag, c.due, c.hold, c.set_at
    FROM sought AS k
    JOIN {fold} AS f ON f.interval_id = k.interval_id
    CROSS JOIN LATERAL (
        SELECT * FROM {timer_change} AS r
        WHERE r.interval_id = f.interval_id AND r.n > f.through AND r.n < f.through + 1000000000
        OFFSET 0
    ) AS c
    WHERE c.slot = %(slot)s AND c.computation = k.computation AND c.key = %(key)s
    ORDER BY c.kind, c.tag, c.n DESC
), merged AS (
    SELECT s.kind, s.tag, s.due, s.hold, s.set_at
    FROM {timer} AS s
    WHERE s.slot = %(slot)s AND s.computation = (SELECT k.computation FROM sought AS k) AND s.key = %(key)s
      AND (s.kind, s.tag) NOT IN (SELECT t.kind, t.tag FROM tail AS t)
    UNION ALL
    SELECT t.kind, t.tag, t.due, t.hold, t.set_at FROM tail AS t WHERE t.due IS NOT NULL
)
SELECT m.kind, m.tag, {micros_to_time}(m.due)::text, {micros_to_time}(m.hold)::text, {micros_to_time}(m.set_at)::text,
       m.total
FROM (
    SELECT g.*, count(*) OVER () AS total FROM merged AS g
    ORDER BY g.due, g.kind, g.tag
    LIMIT %(limit)s OFFSET %(skip)s
) AS m
ORDER BY m.due, m.kind, m.tag
