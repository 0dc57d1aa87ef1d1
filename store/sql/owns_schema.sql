-- Whether this session may act as the owner of a schema. A GRANT of another one only warns.
SELECT pg_catalog.pg_has_role(n.nspowner, 'USAGE') FROM pg_catalog.pg_namespace AS n WHERE n.nspname = %(schema)s
