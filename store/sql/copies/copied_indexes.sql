-- Indexes that no constraint has, as CREATE INDEX up to the table's name, and from there on.
SELECT c.relname::text AS of_table, i.relname::text AS name, x.indisunique AS is_unique,
       substring(pg_catalog.pg_get_indexdef(i.oid) FROM ' (USING .*)$') AS rest
FROM pg_catalog.pg_index AS x
JOIN pg_catalog.pg_class AS i ON i.oid = x.indexrelid
JOIN pg_catalog.pg_class AS c ON c.oid = x.indrelid
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND NOT EXISTS (
      SELECT FROM pg_catalog.pg_constraint AS k WHERE k.conindid = i.oid AND k.contype IN ('p', 'u', 'x')
  )
ORDER BY c.relname, i.relname
