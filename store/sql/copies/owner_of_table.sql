-- The role that owns a pipeline's own tables.
SELECT pg_catalog.pg_get_userbyid(c.relowner)::text FROM pg_catalog.pg_class AS c
WHERE c.oid = pg_catalog.to_regclass(%(table)s)
