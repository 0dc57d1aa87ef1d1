-- The existing bucket for a place; without an id, the beginning of a new one. Buckets of stamps and
-- arrivals are contiguous, so the answer is the first bucket that ends after `low`, or a new one from the
-- end of the newest, whatever the caller believes. Buckets of a source may have been made with other
-- limits: a new one ends where the next begins.
SELECT b.id, coalesce(b.low, n.high, %(low)s), coalesce(b.high, n.next)
FROM (SELECT max(o.high) FILTER (WHERE o.family <> 'source') AS high,
             min(o.low) FILTER (WHERE o.family = 'source' AND o.low > %(low)s) AS next
      FROM {bucket} AS o
      WHERE o.family = %(family)s AND o.log = %(log)s) AS n
LEFT JOIN LATERAL (
    SELECT o.id, o.low, o.high FROM {bucket} AS o
    WHERE o.family = %(family)s AND o.log = %(log)s AND o.high > %(low)s
      AND (o.family <> 'source' OR o.low <= %(low)s)
    ORDER BY o.low
    LIMIT 1
) AS b ON true
