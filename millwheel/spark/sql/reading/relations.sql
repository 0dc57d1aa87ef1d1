-- The relations that can be read in one schema; partitions are read through their parent.
SELECT relation.relname::text AS name
FROM pg_catalog.pg_class AS relation
JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relation.relnamespace
WHERE pg_namespace.nspname = %(pipeline)s
    AND relation.relkind IN ('r', 'p', 'v', 'm', 'f')
    AND NOT relation.relispartition
ORDER BY relation.relname
