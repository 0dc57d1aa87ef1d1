-- Folds the last change of each timer into the current table.
WITH latest AS (
    SELECT DISTINCT ON (slot, computation, key, kind, tag)
        slot, computation, key, kind, tag, due, hold, set_at
    FROM {timer_change}
    WHERE interval_id = %(interval_id)s AND n > %(after)s AND n <= %(through)s
    ORDER BY slot, computation, key, kind, tag, n DESC
), removed AS (
    DELETE FROM {timer} AS t USING latest AS l
    WHERE l.due IS NULL
      AND t.slot = l.slot AND t.computation = l.computation AND t.key = l.key
      AND t.kind = l.kind AND t.tag = l.tag
)
INSERT INTO {timer} AS t (slot, computation, key, kind, tag, due, hold, set_at)
SELECT slot, computation, key, kind, tag, due, hold, set_at FROM latest WHERE due IS NOT NULL
ON CONFLICT (slot, computation, key, kind, tag)
DO UPDATE SET due = excluded.due, hold = excluded.hold, set_at = excluded.set_at
