-- Functions that a deploy or a user has made; those of the schema's version are installed.
SELECT p.proname::text AS name, format('%%I.%%I', %(schema)s::text, p.proname) AS called,
       pg_catalog.pg_get_functiondef(p.oid) AS definition
FROM pg_catalog.pg_proc AS p
WHERE p.pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND p.prokind IN ('f', 'p') AND p.proname <> ALL(%(known)s::text[])
ORDER BY p.oid
