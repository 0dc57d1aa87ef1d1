-- Lets the rest of a transaction act as the owner of a table: what it makes belongs to that role too (decision 61).
SELECT set_config('role', pg_catalog.pg_get_userbyid(c.relowner), true)
FROM pg_catalog.pg_class AS c
WHERE c.oid = pg_catalog.to_regclass(%(table)s)
