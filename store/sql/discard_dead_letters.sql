-- Forgets some dead letters, or (ids NULL) all of them.
DELETE FROM {dead_letter}
WHERE %(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[])
RETURNING id
