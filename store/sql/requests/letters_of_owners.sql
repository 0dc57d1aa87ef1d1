-- Those of some dead letters that only the owners of their keys may delete, and are not asked about: letters of parked keys,
-- which their owners count, and those of which the newest request was withdrawn. The owner may have begun that one, so the
-- letter would be deleted, and processed all the same. An interval that has no owner has begun nothing.
SELECT o.id
FROM {dead_letter} AS o
WHERE o.id = ANY(%(ids)s::bigint[])
  AND (
      o.parked IS NOT NULL
      OR o.id IN (
          SELECT n.letter
          FROM (
              SELECT DISTINCT ON (r.letter) r.letter, r.outcome
              FROM {request} AS r
              WHERE r.letter = ANY(%(ids)s::bigint[])
              ORDER BY r.letter, r.id DESC
          ) AS n
          WHERE n.outcome = 'withdrawn'
      ) AND EXISTS (
          SELECT FROM {key_interval} AS k
          WHERE k.computation = o.computation AND k.slot_from <= o.slot AND o.slot < k.slot_to AND k.owner IS NOT NULL
      )
  )
  AND NOT EXISTS (SELECT FROM {request} AS r WHERE r.letter = o.id AND r.outcome IS NULL)
