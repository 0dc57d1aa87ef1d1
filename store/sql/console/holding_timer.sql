-- The timer, or the hold, of one key that holds the low watermark: the one with the least hold.
WITH sought AS MATERIALIZED (
    SELECT c.id AS computation, k.id AS interval_id
    FROM {computation} AS c
    LEFT JOIN {key_interval} AS k ON k.computation = c.id AND k.slot_from <= %(slot)s AND %(slot)s < k.slot_to
    WHERE c.name = %(computation)s AND c.removed_at IS NULL
), tail AS MATERIALIZED (
    SELECT DISTINCT ON (c.tag) c.tag, c.due, c.hold
    FROM sought AS k
    JOIN {fold} AS f ON f.interval_id = k.interval_id
    CROSS JOIN LATERAL (
        SELECT * FROM {timer_change} AS r
        WHERE r.interval_id = f.interval_id AND r.n > f.through AND r.n < f.through + 1000000000
        OFFSET 0
    ) AS c
    WHERE c.slot = %(slot)s AND c.computation = k.computation AND c.key = %(key)s AND c.kind = %(kind)s
    ORDER BY c.tag, c.n DESC
)
SELECT m.tag, m.due
FROM (
    SELECT s.tag, s.due, s.hold
    FROM {timer} AS s
    WHERE s.slot = %(slot)s AND s.computation = (SELECT k.computation FROM sought AS k) AND s.key = %(key)s
      AND s.kind = %(kind)s AND s.tag NOT IN (SELECT t.tag FROM tail AS t)
    UNION ALL
    SELECT t.tag, t.due, t.hold FROM tail AS t WHERE t.due IS NOT NULL
) AS m
ORDER BY m.hold, m.due, m.tag
LIMIT 1
