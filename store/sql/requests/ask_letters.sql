-- Asks the owners to do something with dead letters, the oldest first, at most so many a second. A letter that an owner
-- has been asked about already is left out, and so are a row without a key, one of a computation that was removed, and
-- one that waits in a parked key when it is to be retried: it follows by itself. The lock keeps a commit from deleting a
-- letter meanwhile. A letter that is locked is being processed, discarded or asked about by others: to wait for it could
-- end in a deadlock with the commit of an owner, which deletes letters in another order.
WITH wanted AS (
    SELECT d.id, d.computation, d.slot, d.key
    FROM {dead_letter} AS d
    JOIN {computation} AS c ON c.id = d.computation AND c.removed_at IS NULL
    WHERE d.id = ANY(%(ids)s::bigint[]) AND d.key IS NOT NULL
      AND (%(verb)s::text <> 'retry' OR d.parked IS DISTINCT FROM 'waiting')
      AND NOT EXISTS (SELECT FROM {request} AS r WHERE r.letter = d.id AND r.outcome IS NULL)
    ORDER BY d.id
    FOR UPDATE OF d SKIP LOCKED
), numbered AS (
    SELECT w.*, row_number() OVER (ORDER BY w.id) - 1 AS place FROM wanted AS w
)
INSERT INTO {request} (
    batch, asked_at, actor, reason, verb, computation, slot, key, letter, payload, due_at
)
SELECT %(batch)s, now(), %(actor)s, %(reason)s, %(verb)s::text, n.computation, n.slot, n.key, n.id, %(payload)s::jsonb,
       now() + coalesce(n.place / %(rate)s::float8, 0) * interval '1 second'
FROM numbered AS n
ORDER BY n.id
ON CONFLICT (letter) WHERE outcome IS NULL DO NOTHING
RETURNING id
