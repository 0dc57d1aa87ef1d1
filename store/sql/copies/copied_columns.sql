-- The tables of a schema as their definitions in CREATE TABLE, and the statements that follow it. With the schema as the search
-- path, a definition names relations of the schema without it. The version of the server that reads them may be another one.
WITH own AS (
    SELECT c.oid, c.relname FROM pg_catalog.pg_class AS c
    WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s) AND c.relkind = 'r'
), part AS (
    SELECT a.attrelid AS oid, a.attnum::integer AS place, concat(
        format('%%I %%s', a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod)),
        CASE WHEN a.attcollation <> t.typcollation THEN ' COLLATE ' || a.attcollation::regcollation END,
        CASE WHEN a.attgenerated <> '' THEN
            format(
                ' GENERATED ALWAYS AS (%%s) %%s', pg_catalog.pg_get_expr(d.adbin, d.adrelid),
                CASE a.attgenerated WHEN 'v' THEN 'VIRTUAL' ELSE 'STORED' END
            )
        WHEN d.adbin IS NOT NULL THEN ' DEFAULT ' || pg_catalog.pg_get_expr(d.adbin, d.adrelid)
        END,
        CASE WHEN s.seqrelid IS NOT NULL THEN
            format(
                ' GENERATED %%s AS IDENTITY (SEQUENCE NAME %%I START %%s INCREMENT %%s MINVALUE %%s MAXVALUE %%s CACHE %%s %%s)',
                CASE a.attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END, i.relname, s.seqstart, s.seqincrement,
                s.seqmin, s.seqmax, s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END
            )
        END,
        CASE WHEN a.attnotnull THEN ' NOT NULL' END
    ) AS definition
    FROM own AS o
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
    LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN pg_catalog.pg_depend AS p
        ON a.attidentity <> '' AND p.classid = 'pg_catalog.pg_class'::regclass AND p.deptype = 'i'
        AND p.refclassid = 'pg_catalog.pg_class'::regclass AND p.refobjid = a.attrelid AND p.refobjsubid = a.attnum
    LEFT JOIN pg_catalog.pg_class AS i ON i.oid = p.objid AND i.relkind = 'S'
    LEFT JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = i.oid
    UNION ALL
    SELECT k.conrelid, 10000, format('CONSTRAINT %%I %%s', k.conname, pg_catalog.pg_get_constraintdef(k.oid))
    FROM own AS o
    JOIN pg_catalog.pg_constraint AS k ON k.conrelid = o.oid AND k.contype = 'c'
), further AS (
    SELECT a.attrelid AS oid, a.attnum::integer AS place, format(
        'ALTER TABLE %%I ALTER COLUMN %%I SET STORAGE %%s', o.relname, a.attname,
        CASE a.attstorage WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END
    ) AS statement
    FROM own AS o
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid AND t.typstorage <> a.attstorage
    UNION ALL
    SELECT a.attrelid, 10000 + a.attnum, format(
        'COMMENT ON COLUMN %%I.%%I IS %%L', o.relname, a.attname, pg_catalog.col_description(a.attrelid, a.attnum)
    )
    FROM own AS o
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE pg_catalog.col_description(a.attrelid, a.attnum) IS NOT NULL
)
SELECT o.relname::text AS of_table,
       ARRAY(SELECT p.definition FROM part AS p WHERE p.oid = o.oid ORDER BY p.place, p.definition) AS definitions,
       ARRAY(SELECT f.statement FROM further AS f WHERE f.oid = o.oid ORDER BY f.place) AS statements
FROM own AS o
