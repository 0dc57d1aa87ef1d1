-- Ends the newest bucket of its family before its time, but not before a while from now by the
-- database's clock, as it is after the lock: who read the buckets before counts on that.
UPDATE {bucket} AS b SET high = x.high
FROM (
    SELECT greatest(
        %(high)s::bigint,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + %(ahead)s::bigint
    ) AS high
    OFFSET 0
) AS x
WHERE b.id = %(id)s AND x.high < b.high AND x.high > b.low
  AND NOT EXISTS (
      SELECT FROM {bucket} AS o WHERE o.family = b.family AND o.log = b.log AND o.low > b.low
  )
