-- Deletes dead letters, but for those that an owner was asked to process again, and those of parked keys: their owners
-- count them, so they are asked to. The letters are locked (lock_letters.sql).
DELETE FROM {dead_letter} AS d
WHERE d.id = ANY(%(ids)s::bigint[]) AND d.parked IS NULL
  AND NOT EXISTS (SELECT FROM {request} AS r WHERE r.letter = d.id AND r.outcome IS NULL)
RETURNING d.id
