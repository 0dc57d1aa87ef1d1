-- The bucket that is there already for what is to be opened; else, without an id, where a new
-- one begins. Those of stamps and arrivals stand edge to edge, whatever whoever asks believes:
-- he gets the first that ends after `low`, or a new one from where the newest ends.
SELECT b.id, coalesce(b.low, n.high, %(low)s), b.high
FROM (SELECT max(o.high) AS high FROM {bucket} AS o
      WHERE o.family = %(family)s AND o.log = %(log)s AND o.family <> 'source') AS n
LEFT JOIN LATERAL (
    SELECT o.id, o.low, o.high FROM {bucket} AS o
    WHERE o.family = %(family)s AND o.log = %(log)s AND o.high > %(low)s
      AND (o.family <> 'source' OR o.low <= %(low)s)
    ORDER BY o.low
    LIMIT 1
) AS b ON true
