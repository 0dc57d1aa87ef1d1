-- The schemas of savepoints that this role may read, with their sizes.
SELECT n.nspname::text AS name, sum(pg_catalog.pg_total_relation_size(c.oid))::bigint AS bytes
FROM pg_catalog.pg_namespace AS n
JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'r'
WHERE position('@' IN n.nspname) > 1 AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
GROUP BY n.oid, n.nspname
HAVING count(*) FILTER (WHERE c.relname IN ('pipeline', 'key_interval', 'commit_record', 'alembic_version')) = 4
ORDER BY n.nspname
