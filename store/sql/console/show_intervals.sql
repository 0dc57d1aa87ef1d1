-- All intervals with owner, wanted owner, wishes to cut them, and their cost as their owners report it.
SELECT k.id, c.name, c.kind, k.slot_from, k.slot_to, k.sequencer, k.owner::text,
       w.id IS NOT NULL AS owner_alive, k.wanted_by::text, k.pinned, k.split_at, k.merge_with,
       w.load -> 'intervals' -> k.id::text AS load
FROM {key_interval} AS k
JOIN {computation} AS c ON c.id = k.computation
LEFT JOIN {worker} AS w ON w.id = k.owner AND NOT w.stopped AND w.lease_until > now()
ORDER BY c.id, k.slot_from
