INSERT INTO {commits} (
    interval_id, n, sequencer, stamp, input_watermark, low_watermark, floor, acked, position, counters,
    table_rows
)
SELECT
    l.interval_id, l.n + 1, k.sequencer, greatest(l.stamp, %(stamp)s), w.watermark, w.watermark,
    greatest(l.floor, %(stamp)s),
    CASE WHEN p.next IS NULL THEN l.acked ELSE l.acked || jsonb_build_object(g.id, jsonb_build_array(p.next, '[]'::jsonb)) END,
    CASE WHEN p.next IS NULL THEN l.position ELSE p.position END,
    l.counters, l.table_rows
FROM {latest_commits} AS l
JOIN {key_interval} AS k ON k.id = l.interval_id
LEFT JOIN {log} AS g ON g.interval_id = l.interval_id AND g.source IS NOT NULL
LEFT JOIN jsonb_to_recordset(%(places)s) AS p (injector text, identity text, position jsonb, next bigint, watermark bigint)
    ON p.injector = l.computation AND p.identity = g.source
CROSS JOIN LATERAL (SELECT greatest(l.low_watermark, coalesce(p.watermark, %(watermark)s)) AS watermark) AS w
