-- All buckets, oldest first, with a time: no bucket was closed early before it after this look. It is the
-- clock's time, or that of the newest heartbeat if the clock has gone back.
SELECT
    (extract(epoch FROM greatest(
        clock_timestamp(), (SELECT max(w.heartbeat_at) FROM {worker} AS w)
    )) * 1000000)::bigint,
    b.id, b.family, b.log, b.low, b.high
FROM (SELECT) AS once
LEFT JOIN {bucket} AS b ON true
ORDER BY b.family, b.log, b.low
