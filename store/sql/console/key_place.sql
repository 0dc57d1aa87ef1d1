-- The place of one key: its computation, the interval that has its slot, and that one's owner. An error tells a name of a
-- computation that does not exist.
SELECT p.computation_id, k.id, k.slot_from, k.slot_to, k.owner::text, w.id IS NOT NULL, w.host, w.pid
FROM {sought_key}(%(computation)s, %(key)s::jsonb, %(slot)s) AS p
LEFT JOIN {key_interval} AS k ON k.id = p.interval_id
LEFT JOIN {worker} AS w ON w.id = k.owner AND NOT w.stopped AND w.lease_until > now()
