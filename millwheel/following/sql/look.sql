-- How far a numbered table is written, for a pipeline that follows it, in one snapshot: of each sender the rows, and
-- the low watermark that they have passed; and the least low watermark of everything that may write the table, also
-- of intervals that have written nothing yet. A sender that has ended has no row to come.
WITH deployed AS (
    SELECT node.key AS computation
    FROM (SELECT code FROM {generation} ORDER BY number DESC LIMIT 1) AS g
    CROSS JOIN LATERAL jsonb_each(g.code -> 'graph' -> 'nodes') AS node
    WHERE EXISTS (
        SELECT FROM jsonb_each(node.value -> 'sinks') AS sinks
        CROSS JOIN LATERAL jsonb_array_elements(sinks.value) AS sink
        WHERE sink.value ->> 'table' = %(table)s
    )
), on_spark AS (
    SELECT q.sender, q.output_watermark FROM {spark_query} AS q WHERE q.ended_at IS NULL
), writing AS (
    SELECT l.interval_id, l.low_watermark
    FROM {latest_commits} AS l JOIN deployed AS d ON d.computation = l.computation
    WHERE NOT EXISTS (SELECT FROM on_spark)
    UNION ALL
    SELECT o.sender, o.output_watermark FROM on_spark AS o
)
SELECT
    (SELECT p.id::text FROM {pipeline} AS p),
    (SELECT count(*) FROM deployed),
    (SELECT min(w.low_watermark) FROM writing AS w),
    n.sender, n.rows,
    CASE WHEN n.ended THEN %(end)s::bigint ELSE coalesce(w.low_watermark, (SELECT min(w.low_watermark) FROM writing AS w)) END
FROM (SELECT %(table)s::text AS name) AS t
LEFT JOIN {numbered_rows} AS n ON n.table_name = t.name
LEFT JOIN writing AS w ON w.interval_id = n.sender
