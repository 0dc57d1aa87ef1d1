-- The dead letters that match a filter, of which a part that is NULL matches all: the end of the statements that list,
-- count and retry them. Records that only wait in a parked key match if they are asked for. The bounds of the numbers are
-- those of a portion.
FROM {dead_letter} AS f
JOIN {computation} AS c ON c.id = f.computation
WHERE (%(waiting)s::boolean OR f.parked IS DISTINCT FROM 'waiting')
  AND (%(ids)s::bigint[] IS NULL OR f.id = ANY(%(ids)s::bigint[]))
  AND (%(computation)s::text IS NULL OR c.name = %(computation)s::text)
  AND (%(key)s::text IS NULL OR f.key = %(key)s::text)
  AND (%(error)s::text IS NULL OR position(lower(%(error)s::text) IN lower(f.error)) > 0)
  AND (%(after)s::bigint IS NULL OR f.id > %(after)s::bigint)
  AND (%(up_to)s::bigint IS NULL OR f.id <= %(up_to)s::bigint)
