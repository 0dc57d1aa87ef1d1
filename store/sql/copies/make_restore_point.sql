-- Marks this moment in the WAL.
SELECT pg_catalog.pg_create_restore_point(%(name)s)::text
