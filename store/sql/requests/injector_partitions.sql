-- The partitions of an injector: the slot of each, and its name.
SELECT k.slot_from, g.source
FROM {computation} AS c
JOIN {key_interval} AS k ON k.computation = c.id
JOIN {log} AS g ON g.interval_id = k.id AND g.source IS NOT NULL
WHERE c.name = %(injector)s AND c.kind = 'injector' AND c.removed_at IS NULL
ORDER BY k.slot_from
