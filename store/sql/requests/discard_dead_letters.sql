-- Deletes dead letters, but for those that an owner is asked about, and those that only owners may delete. The letters are
-- locked (lock_letters.sql).
DELETE FROM {dead_letter} AS d
WHERE d.id = ANY(%(ids)s::bigint[])
  AND d.id NOT IN ({letters_of_owners})
  AND NOT EXISTS (SELECT FROM {request} AS r WHERE r.letter = d.id AND r.outcome IS NULL)
RETURNING d.id
