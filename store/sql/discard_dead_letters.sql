-- Deletes some dead letters, or all of them (ids is NULL).
DELETE FROM {dead_letter}
WHERE %(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s::bigint[])
RETURNING id
