-- Views and materialized views of other schemas that read a pipeline's relations directly.
SELECT DISTINCT n.nspname::text AS schema, c.relname::text AS name
FROM pg_catalog.pg_depend AS d
JOIN pg_catalog.pg_class AS t ON t.oid = d.refobjid
JOIN pg_catalog.pg_rewrite AS r ON r.oid = d.objid
JOIN pg_catalog.pg_class AS c ON c.oid = r.ev_class
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.refclassid = 'pg_catalog.pg_class'::regclass
  AND t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND c.relnamespace <> t.relnamespace AND c.relkind IN ('v', 'm')
ORDER BY 1, 2
