-- The timers of one key that the newest commits of an interval have set or ended, the newest first.
SELECT c.set_at, c.kind, c.tag, {micros_to_time}(c.due)::text
FROM {timer_change} AS c
WHERE c.interval_id = %(interval_id)s AND c.n >= %(first)s AND c.computation = %(computation_id)s
  AND c.slot = %(slot)s AND c.key = %(key)s
ORDER BY c.n DESC, c.kind, c.tag
LIMIT %(limit)s
