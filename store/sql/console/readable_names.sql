-- The tables, views and functions that a statement may name: with their schema and, in the search path, without it.
SELECT n.nspname || '.' || o.name, CASE WHEN o.is_visible THEN o.name END
FROM (
    SELECT c.relnamespace, c.relname::text, pg_catalog.pg_table_is_visible(c.oid)
    FROM pg_catalog.pg_class AS c
    WHERE c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
    UNION
    SELECT p.pronamespace, p.proname::text, pg_catalog.pg_function_is_visible(p.oid)
    FROM pg_catalog.pg_proc AS p
) AS o (schema, name, is_visible)
JOIN pg_catalog.pg_namespace AS n ON n.oid = o.schema
WHERE n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema')
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
