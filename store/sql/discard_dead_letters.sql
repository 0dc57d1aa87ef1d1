-- Deletes dead letters, but for those that an owner was asked to process again.
DELETE FROM {dead_letter} AS d
WHERE d.id = ANY(%(ids)s::bigint[])
  AND NOT EXISTS (SELECT FROM {request} AS r WHERE r.letter = d.id AND r.outcome IS NULL)
RETURNING d.id
