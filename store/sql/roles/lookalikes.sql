-- Functions named like those of the pipeline that another role than its owner has made: a call whose arguments fit them
-- better would run them.
SELECT p.oid::regprocedure::text, o.rolname::text
FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
JOIN pg_catalog.pg_class AS c ON c.relnamespace = n.oid AND c.relname = 'alembic_version'
JOIN pg_catalog.pg_roles AS o ON o.oid = p.proowner
WHERE n.nspname = %(schema)s AND p.proname = ANY(%(names)s::text[]) AND p.proowner <> c.relowner AND NOT o.rolsuper
ORDER BY 1
