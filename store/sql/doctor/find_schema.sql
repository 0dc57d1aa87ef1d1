-- One row if the database has a schema of this name.
SELECT n.oid::bigint FROM pg_catalog.pg_namespace AS n WHERE n.nspname = %(schema)s
