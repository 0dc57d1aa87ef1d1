-- The numbers of those of some dead letters that belong to parked keys.
SELECT d.id FROM {dead_letter} AS d WHERE d.id = ANY(%(ids)s::bigint[]) AND d.parked IS NOT NULL
