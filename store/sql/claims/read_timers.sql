-- The next pending timers of an interval and kind after a place in the order of time: folded timers,
-- overlaid by later changes. The form of the statement makes the planner use the order of the index
-- timer_by_due, and a hash for a long tail, whatever sizes it expects.
WITH tail AS (
    SELECT DISTINCT ON (slot, computation, key, kind, tag) slot, key, tag, due, hold
    FROM {timer_change}
    WHERE interval_id = %(interval_id)s AND kind = %(kind)s
      AND n > (SELECT f.through FROM {fold} AS f WHERE f.interval_id = %(interval_id)s)
    ORDER BY slot, computation, key, kind, tag, n DESC
), folded AS (
    SELECT t.key, t.slot, t.tag, t.due, t.hold
    FROM {timer} AS t
    WHERE t.computation = (SELECT k.computation FROM {key_interval} AS k WHERE k.id = %(interval_id)s)
      AND t.kind = %(kind)s
      AND t.slot >= (SELECT k.slot_from FROM {key_interval} AS k WHERE k.id = %(interval_id)s)
      AND t.slot < (SELECT k.slot_to FROM {key_interval} AS k WHERE k.id = %(interval_id)s)
      AND (t.due, t.slot, t.key, t.tag)
          > (%(due)s::bigint, %(slot)s::integer, %(key)s::text, %(tag)s::text)
      AND (t.slot, t.key, t.tag) NOT IN (SELECT x.slot, x.key, x.tag FROM tail AS x)
    ORDER BY t.due, t.slot, t.key, t.tag
    LIMIT %(limit)s
)
SELECT key, slot, tag, due, hold FROM folded
UNION ALL
SELECT key, slot, tag, due, hold FROM tail
WHERE due IS NOT NULL
  AND (due, slot, key, tag) > (%(due)s::bigint, %(slot)s::integer, %(key)s::text, %(tag)s::text)
ORDER BY due, slot, key, tag
LIMIT %(limit)s
