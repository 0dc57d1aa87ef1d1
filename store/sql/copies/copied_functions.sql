-- Functions that a deploy or a user has made; those of the schema's version are installed. Defaults, checks and indexes of
-- tables may call those that need no table, view or function of the schema themselves.
SELECT p.proname::text AS name, format('%%I.%%I', %(schema)s::text, p.proname) AS called,
       pg_catalog.pg_get_functiondef(p.oid) AS definition,
       NOT EXISTS (
           SELECT FROM pg_catalog.pg_depend AS d
           LEFT JOIN pg_catalog.pg_class AS c ON d.refclassid = 'pg_catalog.pg_class'::regclass AND c.oid = d.refobjid
           LEFT JOIN pg_catalog.pg_type AS t ON d.refclassid = 'pg_catalog.pg_type'::regclass AND t.oid = d.refobjid
           LEFT JOIN pg_catalog.pg_proc AS f ON d.refclassid = 'pg_catalog.pg_proc'::regclass AND f.oid = d.refobjid
           WHERE d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = p.oid
             AND p.pronamespace IN (c.relnamespace, t.typnamespace, f.pronamespace)
       ) AS is_first
FROM pg_catalog.pg_proc AS p
WHERE p.pronamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND p.prokind IN ('f', 'p') AND p.proname <> ALL(%(known)s::text[])
ORDER BY p.oid
