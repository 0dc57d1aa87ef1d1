-- Primary keys, unique and exclusion constraints, and foreign keys last; other constraints come with LIKE. With the schema as
-- the search path, a definition names tables of the schema without it.
SELECT c.relname::text AS of_table, k.conname::text AS name, pg_catalog.pg_get_constraintdef(k.oid) AS definition,
       CASE
           WHEN k.contype = 'f' AND f.relnamespace <> c.relnamespace THEN
               format('%%I.%%I', f.relnamespace::regnamespace, f.relname)
       END AS outside
FROM pg_catalog.pg_constraint AS k
JOIN pg_catalog.pg_class AS c ON c.oid = k.conrelid
LEFT JOIN pg_catalog.pg_class AS f ON f.oid = k.confrelid
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND k.contype IN ('p', 'u', 'x', 'f')
ORDER BY k.contype = 'f', c.relname, k.conname
