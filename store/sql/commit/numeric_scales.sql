-- Digits after the point of a table's columns that are numeric(p, s): Postgres rounds to them without an error.
SELECT a.attname::text, (((a.atttypmod - 4) & 2047) # 1024) - 1024
FROM pg_catalog.pg_attribute AS a
WHERE a.attrelid = %(table)s::regclass AND a.atttypid = 'numeric'::regtype AND a.atttypmod >= 0
  AND a.attnum > 0 AND NOT a.attisdropped
