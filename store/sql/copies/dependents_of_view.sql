-- Objects that a view cannot be dropped before: views, functions and others that use it or its row type, and its triggers.
WITH view AS (
    SELECT c.oid, c.reltype, t.typarray FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_type AS t ON t.oid = c.reltype
    WHERE c.oid = pg_catalog.to_regclass(%(relation)s)
)
SELECT DISTINCT
    CASE
        WHEN r.oid IS NOT NULL THEN pg_catalog.pg_describe_object('pg_catalog.pg_class'::regclass, r.ev_class, 0)
        ELSE pg_catalog.pg_describe_object(d.classid, d.objid, 0)
    END
FROM view AS v
JOIN pg_catalog.pg_depend AS d
    ON (d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = v.oid)
    OR (d.refclassid = 'pg_catalog.pg_type'::regclass AND d.refobjid IN (v.reltype, v.typarray))
LEFT JOIN pg_catalog.pg_rewrite AS r ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND r.oid = d.objid
WHERE r.ev_class IS DISTINCT FROM v.oid
  AND NOT (d.classid = 'pg_catalog.pg_type'::regclass AND d.objid IN (v.reltype, v.typarray))
ORDER BY 1
