-- Whether one key is parked: since when, what waits in it, and the dead letter that stops it.
SELECT {micros_to_time}(min(d.stamp))::text, count(*) FILTER (WHERE d.parked = 'waiting'),
       min(d.id) FILTER (WHERE d.parked = 'failed'), max(d.error) FILTER (WHERE d.parked = 'failed')
FROM {dead_letter} AS d
WHERE d.parked IS NOT NULL AND d.computation = %(computation_id)s AND d.slot = %(slot)s AND d.key = %(key)s
HAVING count(*) > 0
