INSERT INTO {spark_start} (receiver, key, kind, name, value, version, due)
SELECT c.name, s.key, 'cells', s.entry, s.value::text, s.version, NULL
FROM {state} AS s JOIN {computation} AS c ON c.id = s.computation AND c.removed_at IS NULL
UNION ALL
SELECT c.name, t.key, 'timers', t.tag, NULL, NULL, t.due
FROM {timer} AS t JOIN {computation} AS c ON c.id = t.computation AND c.removed_at IS NULL
