-- Defaults of columns that draw from a sequence of the schema: LIKE lets the copy draw from the same one.
SELECT c.relname::text AS of_table, a.attname::text AS of_column, pg_catalog.pg_get_expr(d.adbin, d.adrelid) AS expression
FROM pg_catalog.pg_attrdef AS d
JOIN pg_catalog.pg_class AS c ON c.oid = d.adrelid
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s) AND a.attgenerated = ''
  AND EXISTS (
      SELECT FROM pg_catalog.pg_depend AS p
      JOIN pg_catalog.pg_class AS s ON s.oid = p.refobjid AND s.relkind = 'S' AND s.relnamespace = c.relnamespace
      WHERE p.classid = 'pg_catalog.pg_attrdef'::regclass AND p.objid = d.oid
        AND p.refclassid = 'pg_catalog.pg_class'::regclass
  )
