-- Foreign keys and materialized views of other schemas that hold on to tables of this one.
SELECT format('the foreign key %%s of %%s', k.conname, k.conrelid::regclass)
FROM pg_catalog.pg_constraint AS k
JOIN pg_catalog.pg_class AS t ON t.oid = k.confrelid
JOIN pg_catalog.pg_class AS c ON c.oid = k.conrelid
WHERE k.contype = 'f' AND c.relnamespace <> t.relnamespace
  AND t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
UNION
SELECT format('the materialized view %%s', v.oid::regclass)
FROM pg_catalog.pg_depend AS d
JOIN pg_catalog.pg_rewrite AS r ON r.oid = d.objid AND d.classid = 'pg_catalog.pg_rewrite'::regclass
JOIN pg_catalog.pg_class AS v ON v.oid = r.ev_class AND v.relkind = 'm'
JOIN pg_catalog.pg_class AS t ON t.oid = d.refobjid AND d.refclassid = 'pg_catalog.pg_class'::regclass
WHERE t.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND v.relnamespace <> t.relnamespace
ORDER BY 1
