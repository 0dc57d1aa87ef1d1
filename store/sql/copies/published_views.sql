-- The views that readers use, by the comment that publishing gives them, and the tables that they lead to.
SELECT n.nspname::text AS schema, c.relname::text AS name, tn.nspname::text AS pipeline, t.relname::text AS leads_to,
       pg_catalog.pg_get_userbyid(c.relowner)::text AS owner,
       coalesce('WITH (' || array_to_string(c.reloptions, ', ') || ')', '') AS options
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_rewrite AS r ON r.ev_class = c.oid AND r.rulename = '_RETURN'
JOIN LATERAL (
    SELECT DISTINCT d.refobjid FROM pg_catalog.pg_depend AS d
    WHERE d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = r.oid
      AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid <> c.oid
) AS d ON true
JOIN pg_catalog.pg_class AS t ON t.oid = d.refobjid
JOIN pg_catalog.pg_namespace AS tn ON tn.oid = t.relnamespace
WHERE c.relkind = 'v' AND starts_with(pg_catalog.obj_description(c.oid, 'pg_class'), %(mark)s)
ORDER BY n.nspname, c.relname
