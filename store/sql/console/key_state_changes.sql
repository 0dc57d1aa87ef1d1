-- What the newest commits of an interval have written into the state of one key, the newest first.
SELECT r.stamp, coalesce(e.entry, ''), left(e.value::text, %(most_characters)s)
FROM {state_change} AS c
CROSS JOIN LATERAL unnest(c.keys, c.entries, c.values) AS e (key, entry, value)
JOIN {commit_record} AS r ON r.interval_id = c.interval_id AND r.n = c.n
WHERE c.interval_id = %(interval_id)s AND c.n >= %(first)s AND c.computation = %(computation_id)s
  AND %(slot)s = ANY(c.slots) AND e.key = %(key)s
ORDER BY c.n DESC, coalesce(e.entry, '')
LIMIT %(limit)s
