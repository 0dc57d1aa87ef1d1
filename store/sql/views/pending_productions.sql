CREATE VIEW {pending_productions} AS
SELECT
    l.computation AS sender, c.name AS receiver, s.name AS stream,
    coalesce(p.id, {record_id}(p.log, p.seq)) AS id,
    p.log, p.seq, p.slot, p.key::jsonb AS key, p.value::json AS value,
    {micros_to_time}(p.ts) AS "timestamp", {micros_to_time}(p.hold) AS hold,
    {micros_to_time}(p.stamp) AS produced_at, p.weak
FROM {latest_commits} AS l
JOIN {log} AS g ON g.interval_id = l.interval_id AND NOT g.retired AND g.source IS NULL
CROSS JOIN LATERAL (SELECT coalesce((l.acked -> g.id::text ->> 0)::bigint, 0) AS seq) AS first
CROSS JOIN LATERAL (
    -- The upper bound and OFFSET 0 tell the planner that few are pending: by index.
    (
        SELECT
            r.log, r.first + e.place - 1 AS seq, r.stream, r.receiver, e.slot, e.key, e.value, e.ts, e.hold, r.stamp,
            NULL::uuid AS id, false AS weak
        FROM {production} AS r
        CROSS JOIN LATERAL unnest(r.slots, r.keys, r.values, r.ts, r.holds)
            WITH ORDINALITY AS e (slot, key, value, ts, hold, place)
        WHERE r.log = g.id AND r.last >= first.seq AND r.last < first.seq + 1000000000
            AND r.first + e.place > first.seq
        OFFSET 0
    )
    UNION ALL
    (
        SELECT
            r.log, r.seq, r.stream, r.receiver, r.slot, r.key, r.value, r.ts, r.hold, r.stamp,
            r.id, true AS weak
        FROM {straggler} AS r
        WHERE r.log = g.id AND r.seq >= first.seq AND r.seq < first.seq + 1000000000
        OFFSET 0
    )
) AS p
JOIN {computation} AS c ON c.id = p.receiver
JOIN {stream} AS s ON s.id = p.stream
WHERE NOT EXISTS (
    SELECT FROM jsonb_array_elements(l.acked -> g.id::text -> 1) AS run
    WHERE p.seq >= (run ->> 0)::bigint AND p.seq <= (run ->> 1)::bigint
);
COMMENT ON VIEW {pending_productions} IS 'Records sent and not known to be acknowledged, which a restart would send again';
COMMENT ON COLUMN {pending_productions}.sender IS 'computation that produced it';
COMMENT ON COLUMN {pending_productions}.receiver IS 'computation that reads it';
COMMENT ON COLUMN {pending_productions}.stream IS 'name of the stream';
COMMENT ON COLUMN {pending_productions}.id IS 'the record''s id';
COMMENT ON COLUMN {pending_productions}.log IS 'its log';
COMMENT ON COLUMN {pending_productions}.seq IS 'its place in the log';
COMMENT ON COLUMN {pending_productions}.slot IS 'hash of the receiver''s key';
COMMENT ON COLUMN {pending_productions}.key IS 'the receiver''s key as JSON';
COMMENT ON COLUMN {pending_productions}.value IS 'the value as JSON';
COMMENT ON COLUMN {pending_productions}."timestamp" IS 'event time';
COMMENT ON COLUMN {pending_productions}.hold IS 'the low watermark cannot pass this while it is pending';
COMMENT ON COLUMN {pending_productions}.produced_at IS 'the sender''s logical clock';
COMMENT ON COLUMN {pending_productions}.weak IS 'a straggler: sent before it was stored, and not known to have arrived; or a member of an open numbered bundle'
