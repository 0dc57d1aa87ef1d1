-- Asks the owner of a key for something.
INSERT INTO {request} (batch, asked_at, actor, reason, verb, computation, slot, key, payload, due_at)
SELECT %(batch)s, now(), %(actor)s, %(reason)s, %(verb)s, c.id, %(slot)s, %(key)s, %(payload)s::jsonb, now()
FROM {computation} AS c
WHERE c.name = %(computation)s AND c.removed_at IS NULL
RETURNING id
