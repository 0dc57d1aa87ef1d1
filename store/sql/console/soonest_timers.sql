-- The pending timers of a computation that fire next by event time, by their due time: how many of the first ones have
-- it, and one of them. As in the view watermark_holders, one more is read than the unfolded tail could have changed.
-- Due times stay numbers here, so that only the rows that are shown are put into words.
WITH sought AS MATERIALIZED (
    SELECT id FROM {computation} WHERE name = %(computation)s AND removed_at IS NULL
), tail AS MATERIALIZED (
    SELECT DISTINCT ON (x.slot, x.key, x.tag) x.slot, x.key, x.tag, x.due, x.set_at
    FROM {fold} AS f
    CROSS JOIN LATERAL (
        SELECT * FROM {timer_change} AS c
        WHERE c.interval_id = f.interval_id AND c.n > f.through AND c.n < f.through + 1000000000
        OFFSET 0
    ) AS x
    WHERE x.computation = (SELECT id FROM sought) AND x.kind = 'watermark'
    ORDER BY x.slot, x.key, x.tag, x.n DESC
), soonest AS (
    SELECT s.slot, s.key, s.tag, s.due, s.set_at
    FROM (
        SELECT * FROM {timer}
        WHERE computation = (SELECT id FROM sought) AND kind = 'watermark'
        ORDER BY due, slot, key, tag
        LIMIT (SELECT count(*) + %(read)s FROM tail)
    ) AS s
    WHERE NOT EXISTS (SELECT FROM tail AS t WHERE t.slot = s.slot AND t.key = s.key AND t.tag = s.tag)
), first AS (
    SELECT * FROM soonest
    UNION ALL
    SELECT slot, key, tag, due, set_at FROM tail WHERE due IS NOT NULL
    ORDER BY due, slot, key, tag
    LIMIT %(read)s
), numbered AS (
    SELECT f.*, count(*) OVER (PARTITION BY f.due) AS timers, sum(1) OVER () AS read,
           row_number() OVER (PARTITION BY f.due ORDER BY f.slot, f.key, f.tag) AS place
    FROM first AS f
)
SELECT n.due, n.timers, n.key::text, n.tag, n.set_at, n.read
FROM numbered AS n
WHERE n.place = 1
ORDER BY n.due
LIMIT %(limit)s
