-- All buckets, oldest first, with the time before which none had been closed early after this.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, b.id, b.family, b.log, b.low, b.high
FROM (SELECT) AS once
LEFT JOIN {bucket} AS b ON true
ORDER BY b.family, b.log, b.low
