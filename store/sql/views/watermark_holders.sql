CREATE VIEW {watermark_holders} AS
WITH low AS (
    SELECT computation, kind, min(low_watermark) AS low_watermark, min(input_watermark) AS input_watermark
    FROM {latest_commits} GROUP BY computation, kind
), candidates AS (
    SELECT computation, 1 AS preference, CASE kind WHEN 'hold' THEN 'state' ELSE 'timer' END AS holder,
           CASE kind
               WHEN 'hold' THEN format('hold %s of key %s, at %s', tag, key, due)
               ELSE format('timer %s of key %s, due %s', tag, key, due)
           END AS what,
           key, extract(epoch FROM hold) * 1000000 AS hold, NULL::timestamptz AS since
    FROM (
        SELECT DISTINCT ON (computation) * FROM {timers} WHERE kind IN ('watermark', 'hold')
        ORDER BY computation, hold, key
    ) AS t
    UNION ALL
    SELECT sender, 2, 'record',
           format('record %s of stream %s for %s, key %s, not acknowledged', id, stream, receiver, key),
           key, extract(epoch FROM hold) * 1000000, produced_at
    FROM (
        SELECT DISTINCT ON (sender) * FROM {pending_productions} ORDER BY sender, hold, seq
    ) AS p
    UNION ALL
    SELECT low.computation, 3, 'input', format('waits for %s', u.name), NULL, w.low_watermark, NULL
    FROM low
    JOIN {computation} AS c ON c.name = low.computation
    CROSS JOIN LATERAL jsonb_array_elements_text(c.upstream) AS u (name)
    JOIN low AS w ON w.computation = u.name
    UNION ALL
    SELECT l.computation, 3, 'source',
           CASE
               WHEN l.position ->> 'held_by' IS NOT NULL
               THEN format('row %s of %s, not acknowledged', l.position ->> 'held_by', g.source)
               ELSE format('%s: newest seen time less the lateness', g.source)
           END,
           NULL, l.low_watermark, NULL
    FROM {latest_commits} AS l
    JOIN {log} AS g ON g.interval_id = l.interval_id AND g.source IS NOT NULL
    WHERE l.kind = 'injector'
)
SELECT DISTINCT ON (low.computation)
    low.computation,
    {micros_to_time}(low.low_watermark) AS low_watermark,
    c.holder,
    c.what,
    c.key,
    CASE
        WHEN c.hold > 253402128000000000 - 1 THEN 'infinity'::timestamptz
        WHEN c.hold < -62135510400000000 THEN '-infinity'::timestamptz
        ELSE {micros_to_time}(c.hold::bigint)
    END AS held_at,
    clock_timestamp() - c.since AS age
FROM low
JOIN candidates AS c ON c.computation = low.computation
ORDER BY low.computation, c.hold, c.preference;
COMMENT ON VIEW {watermark_holders} IS 'What keeps each computation''s low watermark from moving on';
COMMENT ON COLUMN {watermark_holders}.computation IS 'name of the computation';
COMMENT ON COLUMN {watermark_holders}.low_watermark IS 'its low watermark as stored';
COMMENT ON COLUMN {watermark_holders}.holder IS 'timer, state, record, input or source';
COMMENT ON COLUMN {watermark_holders}.what IS 'the holder in words';
COMMENT ON COLUMN {watermark_holders}.key IS 'the holder''s key as JSON, if it has one';
COMMENT ON COLUMN {watermark_holders}.held_at IS 'the time it holds the watermark at';
COMMENT ON COLUMN {watermark_holders}.age IS 'of a record: how long ago it was produced'
