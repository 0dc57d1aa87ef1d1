-- Folds the last value of each changed entry into the current table. `through` is the fence of the fold
-- itself: if it has another value, another fold was faster.
WITH latest AS (
    SELECT DISTINCT ON (slot, computation, key, entry)
        slot, computation, key, entry, value, version
    FROM {state_changes}
    WHERE interval_id = %(interval_id)s AND n > %(after)s AND n <= %(through)s
    ORDER BY slot, computation, key, entry, n DESC
), removed AS (
    DELETE FROM {state} AS s USING latest AS l
    WHERE l.value IS NULL
      AND s.slot = l.slot AND s.computation = l.computation AND s.key = l.key AND s.entry = l.entry
)
INSERT INTO {state} AS s (slot, computation, key, entry, value, version)
SELECT slot, computation, key, entry, value, version FROM latest WHERE value IS NOT NULL
ON CONFLICT (slot, computation, key, entry)
DO UPDATE SET value = excluded.value, version = excluded.version
