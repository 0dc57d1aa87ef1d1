-- Takes the records and timers that have blocked former owners of the claimed intervals.
DELETE FROM {blocking_item} AS b
USING {key_interval} AS k
WHERE k.id = ANY(%(interval_ids)s::bigint[])
  AND b.computation = k.computation AND b.slot >= k.slot_from AND b.slot < k.slot_to
RETURNING k.id, b.key, b.item, b.error
