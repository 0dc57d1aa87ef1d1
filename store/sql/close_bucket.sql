-- Ends the newest bucket of its family before its time, but not before a while from now by the
-- database's clock, as it is after the lock: who read the buckets before counts on that. Where the clock
-- has gone back (a heartbeat is ahead of it), workers may still give and be given stamps of the time
-- before, until their next heartbeat or the end of their lease: the end lies behind these. A step back that no
-- heartbeat shows is no greater than the time between two: a third of a lease.
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
