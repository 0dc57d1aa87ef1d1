-- In the order of the slots: the rows of a bucket of Spark come one after the other.
INSERT INTO {spark_start} (receiver, key, kind, name, value, version, due)
SELECT k.receiver, k.key, k.kind, k.name, k.value, k.version, k.due
FROM (
    SELECT c.name AS receiver, s.slot, s.key, 'cells' AS kind, s.entry AS name, s.value::text, s.version, NULL::bigint AS due
    FROM {state} AS s JOIN {computation} AS c ON c.id = s.computation AND c.removed_at IS NULL
    UNION ALL
    SELECT c.name, t.slot, t.key, 'timers', t.tag, NULL, NULL, t.due
    FROM {timer} AS t JOIN {computation} AS c ON c.id = t.computation AND c.removed_at IS NULL
) AS k
ORDER BY k.receiver, k.slot, k.key
