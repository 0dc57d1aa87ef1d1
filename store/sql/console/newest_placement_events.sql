-- The last placement events, newest first; with a number, only those before it.
SELECT e.id, e.at::text, e.computation, e.interval_id, e.slot_from, e.slot_to, e.what,
       e.from_worker::text, e.to_worker::text, e.reason
FROM {placement_events} AS e
WHERE e.id < coalesce(%(before)s, 9223372036854775807)
ORDER BY e.id DESC
LIMIT %(limit)s
