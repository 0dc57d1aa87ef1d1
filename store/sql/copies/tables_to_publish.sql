-- The tables of a schema that are not the engine's: those of sinks, and those of users. Parts of another table are left out.
SELECT c.relname::text AS name, pg_catalog.pg_get_userbyid(c.relowner)::text AS owner
FROM pg_catalog.pg_class AS c
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND c.relkind IN ('r', 'p') AND c.relname <> ALL(%(known)s::text[])
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = c.oid)
ORDER BY c.relname
