-- The tables of one schema that this role may lock for reading. Locking a partitioned table
-- locks its partitions too, so they are not listed. Staging tables are not read, and somebody empties them.
SELECT relation.relname::text AS name
FROM pg_catalog.pg_class AS relation
JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relation.relnamespace
WHERE pg_namespace.nspname = %(pipeline)s
    AND relation.relkind IN ('r', 'p')
    AND NOT relation.relispartition
    AND NOT (relation.relpersistence = 'u' AND relation.relname LIKE 'staging\_of\_%%')
    AND pg_catalog.has_table_privilege(relation.oid, 'SELECT')
ORDER BY relation.relname
