-- The schemas that are pipelines: each has a table of commit records.
SELECT pg_namespace.nspname::text AS name
FROM pg_catalog.pg_class AS relation
JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relation.relnamespace
WHERE relation.relname = 'commit_record' AND relation.relkind IN ('r', 'p')
ORDER BY pg_namespace.nspname
