-- Pending timers of an interval: the folded ones overlaid by what came after.
WITH tail AS (
    SELECT DISTINCT ON (slot, computation, key, kind, tag) slot, key, kind, tag, due, hold
    FROM {timer_change}
    WHERE interval_id = %(interval_id)s AND n > %(after)s
    ORDER BY slot, computation, key, kind, tag, n DESC
)
SELECT t.key, t.slot, t.kind, t.tag, t.due, t.hold
FROM {timer} AS t
WHERE t.computation = %(computation)s AND t.slot >= %(slot_from)s AND t.slot < %(slot_to)s
  AND NOT EXISTS (
      SELECT FROM tail AS x
      WHERE x.slot = t.slot AND x.key = t.key AND x.kind = t.kind AND x.tag = t.tag
  )
UNION ALL
SELECT key, slot, kind, tag, due, hold FROM tail WHERE due IS NOT NULL
