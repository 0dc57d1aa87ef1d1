-- Ends the newest bucket of its family before its time, but not before a while from now by the
-- database's clock, as it is after the lock: who read the buckets before counts on that. Where the clock
-- has gone back (a heartbeat is ahead of it), workers may still give and be given stamps of the time
-- before, until their next heartbeat or the end of their lease: the end lies behind these.
UPDATE {bucket} AS b SET high = x.high
FROM (
    SELECT greatest(
        %(high)s::bigint,
        (extract(epoch FROM greatest(c.now, h.newest)) * 1000000)::bigint + %(ahead)s::bigint
    ) AS high
    FROM (SELECT clock_timestamp() AS now OFFSET 0) AS c
    LEFT JOIN LATERAL (
        SELECT max(w.heartbeat_at + w.lease_seconds * interval '1 second') AS newest
        FROM {worker} AS w
        WHERE w.heartbeat_at > c.now
    ) AS h ON true
    OFFSET 0
) AS x
WHERE b.id = %(id)s AND x.high < b.high AND x.high > b.low
  AND NOT EXISTS (
      SELECT FROM {bucket} AS o WHERE o.family = b.family AND o.log = b.log AND o.low > b.low
  )
