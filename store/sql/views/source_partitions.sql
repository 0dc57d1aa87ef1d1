-- The position is JSON of `SourceProgress` (millwheel/core/source_progress.py).
CREATE VIEW {source_partitions} AS
SELECT
    l.computation AS injector, g.source AS partition, l.interval_id,
    l.position -> 'reader' ->> 'next' AS next,
    (l.acked -> g.id::text ->> 0)::bigint AS acked,
    (f.flow ->> 'pending')::bigint AS pending,
    (f.flow ->> 'lag_rows')::bigint AS lag_rows,
    (f.flow ->> 'lag_bytes')::bigint AS lag_bytes,
    (f.flow ->> 'log_start')::bigint AS log_start,
    (f.flow ->> 'log_end')::bigint AS log_end,
    (f.flow ->> 'latency')::double precision AS acknowledged_in,
    {micros_to_time}(l.low_watermark) AS low_watermark,
    f.behind,
    CASE
        WHEN (f.flow ->> 'pending')::bigint = 0 AND (f.flow ->> 'lag_rows')::bigint = 0 THEN interval '0'
        ELSE f.behind
    END AS lag,
    l.position ->> 'held_by' AS held_by,
    coalesce((l.position ->> 'ended')::boolean, false) AS ended,
    l.owner, w.heartbeat_at AS as_of
FROM {latest_commits} AS l
JOIN {log} AS g ON g.interval_id = l.interval_id AND g.source IS NOT NULL
LEFT JOIN {worker} AS w ON w.id = l.owner AND NOT w.stopped
LEFT JOIN LATERAL (
    SELECT
        w.load -> 'intervals' -> l.interval_id::text -> 'flow' AS flow,
        clock_timestamp() - nullif({micros_to_time}(l.low_watermark), '-infinity') AS behind
) AS f ON true;
COMMENT ON VIEW {source_partitions} IS 'Partitions of sources: how far each is read, and the rows that wait';
COMMENT ON COLUMN {source_partitions}.injector IS 'name of the injector';
COMMENT ON COLUMN {source_partitions}.partition IS 'the partition''s identity: a file, or topic-id/number of Kafka';
COMMENT ON COLUMN {source_partitions}.interval_id IS 'key_interval.id';
COMMENT ON COLUMN {source_partitions}.next IS
    'stored position: where reading resumes, for Kafka an offset; NULL: the source has positions of another kind';
COMMENT ON COLUMN {source_partitions}.acked IS 'first row that is not acknowledged by all readers';
COMMENT ON COLUMN {source_partitions}.pending IS 'rows that are read and not acknowledged';
COMMENT ON COLUMN {source_partitions}.lag_rows IS 'rows that are there and not read yet; NULL: not known';
COMMENT ON COLUMN {source_partitions}.lag_bytes IS 'their bytes; NULL: not known';
COMMENT ON COLUMN {source_partitions}.log_start IS
    'first row that the partition still has, for Kafka an offset, looked up each minute; NULL: not known';
COMMENT ON COLUMN {source_partitions}.log_end IS
    'one past its last row, for Kafka the first offset of an open transaction; NULL: not known';
COMMENT ON COLUMN {source_partitions}.acknowledged_in IS
    'seconds from read to acknowledgement, for 95 of 100 rows';
COMMENT ON COLUMN {source_partitions}.low_watermark IS 'event time that the partition has promised';
COMMENT ON COLUMN {source_partitions}.behind IS 'how far that is behind now';
COMMENT ON COLUMN {source_partitions}.lag IS
    'the same while rows wait to be read or acknowledged; otherwise 0: nothing is owed';
COMMENT ON COLUMN {source_partitions}.held_by IS 'the row that holds the low watermark; NULL: none does';
COMMENT ON COLUMN {source_partitions}.ended IS 'no row will follow';
COMMENT ON COLUMN {source_partitions}.owner IS 'worker.id of its owner';
COMMENT ON COLUMN {source_partitions}.as_of IS
    'when its owner told pending, lag and latency, with its heartbeat'
