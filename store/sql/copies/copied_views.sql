-- Views that a deploy or a user has made. With the schema as the search path, a definition names the schema's relations
-- without it.
SELECT c.relname::text AS name, pg_catalog.pg_get_viewdef(c.oid) AS definition,
       'WITH (' || array_to_string(c.reloptions, ', ') || ')' AS options, pg_catalog.obj_description(c.oid, 'pg_class') AS comment
FROM pg_catalog.pg_class AS c
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND c.relkind = 'v' AND c.relname <> ALL(%(known)s::text[])
ORDER BY c.oid
