-- The sequences of a schema. Those of identity columns come with their table (`column_of` has it); a serial column has one of
-- its own, which belongs to it.
SELECT c.relname::text AS name, pg_catalog.format_type(s.seqtypid, NULL) AS type, s.seqstart AS start,
       s.seqincrement AS increment, s.seqmin AS least, s.seqmax AS greatest, s.seqcache AS cache, s.seqcycle AS cycles,
       d.deptype = 'i' AS is_identity, t.relname::text AS of_table, a.attname::text AS of_column
FROM pg_catalog.pg_sequence AS s
JOIN pg_catalog.pg_class AS c ON c.oid = s.seqrelid
LEFT JOIN pg_catalog.pg_depend AS d
    ON d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
    AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.deptype IN ('a', 'i')
LEFT JOIN pg_catalog.pg_class AS t ON t.oid = d.refobjid
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
ORDER BY c.relname
