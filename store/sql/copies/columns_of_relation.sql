-- The columns of a table or view, in their order, with types as CREATE OR REPLACE VIEW compares them.
SELECT a.attname::text AS name,
       pg_catalog.format_type(a.atttypid, a.atttypmod)
           || coalesce(' COLLATE ' || nullif(a.attcollation, 0)::regcollation::text, '') AS type
FROM pg_catalog.pg_attribute AS a
WHERE a.attrelid = pg_catalog.to_regclass(%(relation)s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
