-- Asks the owners to process dead letters again, the oldest first, at most so many a second. A letter that is being
-- retried already is left out, and so is a row without a key. The lock keeps a commit from deleting a letter meanwhile.
WITH wanted AS (
    SELECT d.id, d.computation, d.slot, d.key
    FROM {dead_letter} AS d
    WHERE d.id = ANY(%(ids)s::bigint[]) AND d.key IS NOT NULL
    ORDER BY d.id
    FOR UPDATE
), numbered AS (
    SELECT w.*, row_number() OVER (ORDER BY w.id) - 1 AS place FROM wanted AS w
)
INSERT INTO {request} (
    batch, asked_at, actor, reason, verb, computation, slot, key, letter, payload, due_at
)
SELECT %(batch)s, now(), %(actor)s, %(reason)s, 'retry', n.computation, n.slot, n.key, n.id, %(payload)s::jsonb,
       now() + coalesce(n.place / %(rate)s::float8, 0) * interval '1 second'
FROM numbered AS n
ORDER BY n.id
ON CONFLICT (letter) WHERE outcome IS NULL DO NOTHING
RETURNING id
