-- Columns with a statistics target of their own, which LIKE leaves out.
SELECT c.relname::text AS of_table, a.attname::text AS of_column, a.attstattarget::integer AS target
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND c.relkind = 'r' AND a.attstattarget >= 0
ORDER BY c.relname, a.attnum
