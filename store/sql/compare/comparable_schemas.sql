-- The schemas of pipelines and of their savepoints that this role may read.
SELECT n.nspname::text
FROM pg_catalog.pg_namespace AS n
WHERE (
    SELECT count(*) FROM pg_catalog.pg_class AS c
    WHERE c.relnamespace = n.oid AND c.relkind = 'r'
      AND c.relname IN ('pipeline', 'key_interval', 'commit_record', 'alembic_version')
) = 4
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
ORDER BY n.nspname
