-- Views and materialized views of other schemas that read relations of this one directly. With an empty search path their
-- definitions name the schema.
SELECT DISTINCT n.nspname::text AS schema, v.relname::text AS name, v.relkind::text AS kind,
       pg_catalog.pg_get_viewdef(v.oid) AS definition,
       'WITH (' || array_to_string(v.reloptions, ', ') || ')' AS options, v.oid
FROM pg_catalog.pg_depend AS d
JOIN pg_catalog.pg_rewrite AS r ON r.oid = d.objid AND d.classid = 'pg_catalog.pg_rewrite'::regclass
JOIN pg_catalog.pg_class AS v ON v.oid = r.ev_class AND v.relkind IN ('v', 'm')
JOIN pg_catalog.pg_namespace AS n ON n.oid = v.relnamespace
JOIN pg_catalog.pg_class AS t ON t.oid = d.refobjid AND d.refclassid = 'pg_catalog.pg_class'::regclass
WHERE t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND v.relnamespace <> t.relnamespace
ORDER BY v.oid
