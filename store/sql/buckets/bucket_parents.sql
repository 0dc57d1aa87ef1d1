-- The parents of the bucket tables of some pipelines, if this role may lock them for reading.
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY(%(pipelines)s::text[]) AND c.relname = ANY(%(tables)s::text[])
  AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
ORDER BY n.nspname, c.relname
