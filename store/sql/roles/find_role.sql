-- Whether a role exists.
SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %(role)s
