-- The tables of a schema that are not the engine's, with their sizes; partitions and children with their parents.
SELECT c.oid, c.relname::text, pg_catalog.pg_table_size(c.oid), c.reltuples::float8
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p')
  AND c.relname <> ALL(%(engine)s::text[])
  AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_inherits AS i
      JOIN pg_catalog.pg_class AS parent ON parent.oid = i.inhparent
      WHERE i.inhrelid = c.oid AND parent.relnamespace = c.relnamespace
  )
ORDER BY c.relname
