-- Objects of a user in a schema that are not copied.
SELECT 'trigger ' || t.tgname || ' of ' || c.relname
FROM pg_catalog.pg_trigger AS t
JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s) AND NOT t.tgisinternal
  AND t.tgname NOT LIKE 'tee\_%%'
UNION ALL
SELECT CASE c.relkind WHEN 'm' THEN 'materialized view ' WHEN 'f' THEN 'foreign table ' ELSE 'partitioned table ' END
       || c.relname
FROM pg_catalog.pg_class AS c
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND c.relkind IN ('m', 'f', 'p')
UNION ALL
SELECT 'type ' || t.typname
FROM pg_catalog.pg_type AS t
WHERE t.typnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND t.typtype IN ('e', 'd', 'r')
UNION ALL
SELECT 'policy ' || p.polname || ' of ' || c.relname
FROM pg_catalog.pg_policy AS p
JOIN pg_catalog.pg_class AS c ON c.oid = p.polrelid
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
ORDER BY 1
