CREATE VIEW {timers} AS
WITH tail AS (
    SELECT DISTINCT ON (x.slot, x.computation, x.key, x.kind, x.tag)
        x.slot, x.computation, x.key, x.kind, x.tag, x.due, x.hold, x.set_at
    FROM {fold} AS f
    CROSS JOIN LATERAL (
        -- The upper bound and OFFSET 0 tell the planner that the tail is short: by index.
        SELECT * FROM {timer_change} AS c
        WHERE c.interval_id = f.interval_id AND c.n > f.through AND c.n < f.through + 1000000000
        OFFSET 0
    ) AS x
    ORDER BY x.slot, x.computation, x.key, x.kind, x.tag, x.n DESC
), merged AS (
    SELECT s.slot, s.computation, s.key, s.kind, s.tag, s.due, s.hold, s.set_at
    FROM {timer} AS s
    WHERE NOT EXISTS (
        SELECT FROM tail AS t
        WHERE t.slot = s.slot AND t.computation = s.computation AND t.key = s.key
          AND t.kind = s.kind AND t.tag = s.tag
    )
    UNION ALL
    SELECT slot, computation, key, kind, tag, due, hold, set_at FROM tail WHERE due IS NOT NULL
)
SELECT
    c.name AS computation, m.slot, m.key::jsonb AS key, m.kind, m.tag,
    {micros_to_time}(m.due) AS due, {micros_to_time}(m.hold) AS hold,
    {micros_to_time}(m.set_at) AS set_at
FROM merged AS m
JOIN {computation} AS c ON c.id = m.computation AND c.removed_at IS NULL;
COMMENT ON VIEW {timers} IS
    'Pending timers, and holds of the watermark by user code, exactly at this snapshot';
COMMENT ON COLUMN {timers}.computation IS 'name of the computation';
COMMENT ON COLUMN {timers}.slot IS 'hash of the key, 0 to 65535';
COMMENT ON COLUMN {timers}.key IS 'the key as JSON';
COMMENT ON COLUMN {timers}.kind IS 'watermark: fires by event time; wall: fires by the clock; hold: holds the watermark, never fires';
COMMENT ON COLUMN {timers}.tag IS 'tag given by the computation';
COMMENT ON COLUMN {timers}.due IS 'when it fires; the time at which a hold holds the watermark';
COMMENT ON COLUMN {timers}.hold IS 'the low watermark cannot pass this while the timer is set';
COMMENT ON COLUMN {timers}.set_at IS 'logical time of the commit that set it'
