-- State written since the last fold: the last value of each entry.
SELECT DISTINCT ON (slot, computation, key, entry) key, slot, entry, value::text, version, n
FROM {state_changes}
WHERE interval_id = %(interval_id)s AND n > %(after)s
ORDER BY slot, computation, key, entry, n DESC
