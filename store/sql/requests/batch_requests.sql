-- The requests of a batch, the last asked first.
SELECT r.id, c.name, r.key, r.letter, r.due_at::text, coalesce(r.outcome, 'open'), r.detail, r.settled_at::text
FROM {request} AS r
LEFT JOIN {computation} AS c ON c.id = r.computation
WHERE r.batch = %(batch)s
  AND (%(outcome)s::text IS NULL OR coalesce(r.outcome, 'open') = %(outcome)s::text)
  AND (%(below)s::bigint IS NULL OR r.id < %(below)s::bigint)
ORDER BY r.id DESC
LIMIT %(limit)s
