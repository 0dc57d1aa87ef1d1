-- The tables, views and sequences of a schema, with their owners and, of a bucket's tables, their parents; sequences that a
-- column owns go with their tables.
SELECT c.relname::text, pg_catalog.pg_get_userbyid(c.relowner)::text, coalesce(parent.relname, c.relname)::text
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = c.oid
LEFT JOIN pg_catalog.pg_class AS parent ON parent.oid = i.inhparent AND parent.relnamespace = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
  AND NOT (
      c.relkind = 'S' AND EXISTS (
          SELECT FROM pg_catalog.pg_depend AS d
          WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
      )
  )
ORDER BY 1
