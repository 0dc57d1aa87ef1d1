-- Locks dead letters against requests about them. Those that others have locked are being processed, or asked about.
SELECT d.id FROM {dead_letter} AS d
WHERE d.id = ANY(%(ids)s::bigint[]) AND d.parked IS NULL
ORDER BY d.id
FOR UPDATE SKIP LOCKED
