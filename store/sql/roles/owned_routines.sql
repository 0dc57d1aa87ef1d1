-- The functions of a schema: name, signature for ALTER, and owner.
SELECT p.proname::text, p.oid::regprocedure::text, pg_catalog.pg_get_userbyid(p.proowner)::text
FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = %(schema)s
ORDER BY 1, 2
