-- Ends the newest bucket of its family early, but not before a minimum distance from now by the database's
-- clock, read after the lock: earlier looks at the buckets rely on that. If the clock has gone back (a
-- heartbeat is ahead of it), workers may still give and receive stamps of the former time until their next
-- heartbeat or the end of their lease, so the bucket ends after these. A step back that no heartbeat shows
-- is not larger than the time between two heartbeats, a third of a lease.
UPDATE {bucket} AS b SET high = x.high
FROM (
    SELECT greatest(
        %(high)s::bigint,
        (extract(epoch FROM greatest(c.now, h.newest)) * 1000000)::bigint + %(early)s::bigint
        + greatest(%(step)s::bigint, (l.longest * 1000000 / 3)::bigint)
    ) AS high
    FROM (SELECT clock_timestamp() AS now OFFSET 0) AS c
    LEFT JOIN LATERAL (
        SELECT max(w.heartbeat_at + w.lease_seconds * interval '1 second') AS newest
        FROM {worker} AS w
        WHERE w.heartbeat_at > c.now
    ) AS h ON true
    CROSS JOIN (SELECT max(w.lease_seconds) AS longest FROM {worker} AS w WHERE NOT w.stopped) AS l
    OFFSET 0
) AS x
WHERE b.id = %(id)s AND x.high < b.high AND x.high > b.low
  AND NOT EXISTS (
      SELECT FROM {bucket} AS o WHERE o.family = b.family AND o.log = b.log AND o.low > b.low
  )
