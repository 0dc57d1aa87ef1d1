-- The owner of a schema, whether this session may act as that role (a GRANT of another one only warns), and whether
-- the owner is a superuser.
SELECT o.rolname::text, pg_catalog.pg_has_role(o.oid, 'USAGE'), o.rolsuper
FROM pg_catalog.pg_namespace AS n
JOIN pg_catalog.pg_roles AS o ON o.oid = n.nspowner
WHERE n.nspname = %(schema)s
