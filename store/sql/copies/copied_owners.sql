-- Relations of a schema that belong to another role than the schema's own tables: workers make the tables of sinks.
SELECT c.relname::text, pg_catalog.pg_get_userbyid(c.relowner)::text
FROM pg_catalog.pg_class AS c
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND c.relkind IN ('r', 'v', 'S') AND pg_catalog.pg_get_userbyid(c.relowner) <> current_user
  AND NOT (  -- the sequence of a column belongs to the owner of its table
      c.relkind = 'S' AND EXISTS (
          SELECT FROM pg_catalog.pg_depend AS d
          WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
            AND d.refclassid = 'pg_catalog.pg_class'::regclass
      )
  )
