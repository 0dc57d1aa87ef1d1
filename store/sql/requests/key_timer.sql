-- One timer of a key, with the changes that are not folded yet.
WITH tail AS (
    SELECT c.due, c.hold
    FROM {timer_change} AS c
    WHERE c.interval_id = %(interval_id)s AND c.computation = %(computation)s AND c.slot = %(slot)s
      AND c.key = %(key)s AND c.kind = %(kind)s AND c.tag = %(tag)s
      AND c.n > (SELECT f.through FROM {fold} AS f WHERE f.interval_id = %(interval_id)s)
    ORDER BY c.n DESC
    LIMIT 1
)
SELECT due, hold FROM tail WHERE due IS NOT NULL
UNION ALL
SELECT t.due, t.hold
FROM {timer} AS t
WHERE t.slot = %(slot)s AND t.computation = %(computation)s AND t.key = %(key)s AND t.kind = %(kind)s
  AND t.tag = %(tag)s AND NOT EXISTS (SELECT FROM tail)
