-- Open requests that the owner of an interval finds with its claim: records that it must set aside, and all requests to
-- injectors. The oldest come first.
SELECT r.id, k.id, r.verb, r.slot, coalesce(r.key, ''), r.payload::text
FROM {key_interval} AS k
JOIN {computation} AS c ON c.id = k.computation
JOIN {request} AS r ON r.computation = k.computation AND r.slot >= k.slot_from AND r.slot < k.slot_to
WHERE k.id = ANY(%(interval_ids)s::bigint[]) AND r.outcome IS NULL AND r.due_at <= now()
  AND (r.verb = 'set_aside' OR c.kind = 'injector')
ORDER BY r.id
LIMIT %(limit)s
