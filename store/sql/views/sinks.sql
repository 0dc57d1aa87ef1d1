CREATE VIEW {sinks} AS
SELECT
    l.computation AS sink, l.interval_id AS scope,
    CASE
        WHEN l.position -> 'bundle' ? 'open' THEN (l.position -> 'bundle' ->> 'previous')::bigint
        ELSE (l.position -> 'bundle' ->> 'number')::bigint
    END AS acked,
    CASE
        WHEN l.position -> 'bundle' ? 'open' THEN (l.position -> 'bundle' ->> 'number')::bigint
    END AS open,
    jsonb_array_length(l.position -> 'bundle' -> 'open') AS open_records,
    {micros_to_time}((l.position -> 'bundle' ->> 'at')::bigint) AS open_since,
    (w.load -> 'intervals' -> l.interval_id::text ->> 'queue')::bigint AS waiting,
    {micros_to_time}(l.input_watermark) AS input_watermark,
    l.owner, w.heartbeat_at AS as_of
FROM {latest_commits} AS l
LEFT JOIN {worker} AS w ON w.id = l.owner AND NOT w.stopped
WHERE l.position ? 'bundle';
COMMENT ON VIEW {sinks} IS 'Sinks outside the store, and other readers of numbered bundles';
COMMENT ON COLUMN {sinks}.sink IS 'name of the sink''s step';
COMMENT ON COLUMN {sinks}.scope IS 'key_interval.id; the last part of a transactional id of Kafka';
COMMENT ON COLUMN {sinks}.acked IS 'number of the last bundle that is delivered';
COMMENT ON COLUMN {sinks}.open IS 'number of the bundle that is being delivered; NULL: none is';
COMMENT ON COLUMN {sinks}.open_records IS 'its records';
COMMENT ON COLUMN {sinks}.open_since IS 'when it was closed, by its owner''s clock';
COMMENT ON COLUMN {sinks}.waiting IS 'records that wait in its owner''s memory';
COMMENT ON COLUMN {sinks}.input_watermark IS 'low watermark of its input';
COMMENT ON COLUMN {sinks}.owner IS 'worker.id of its owner';
COMMENT ON COLUMN {sinks}.as_of IS 'when its owner reported the waiting rows, with its heartbeat'
