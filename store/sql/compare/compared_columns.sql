-- The columns of a table: name, type for messages, type for casts, whether the type has an equality, and the
-- collation. Of a domain, the type below it counts. A type without an operator class has no equality, such as json.
WITH RECURSIVE base AS (
    SELECT a.attnum, a.attname, a.atttypid, a.attcollation, t.oid, t.typtype, t.typbasetype, t.typelem, t.typcategory
    FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
    WHERE a.attrelid = %(table)s::oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attnum, b.attname, b.atttypid, b.attcollation, t.oid, t.typtype, t.typbasetype, t.typelem, t.typcategory
    FROM base AS b
    JOIN pg_catalog.pg_type AS t ON b.typtype = 'd' AND t.oid = b.typbasetype
), kinds AS (
    SELECT
        b.*,
        (
            SELECT CASE e.typtype WHEN 'e' THEN 'anyenum'::regtype WHEN 'r' THEN 'anyrange'::regtype ELSE e.oid::regtype END
            FROM pg_catalog.pg_type AS e
            WHERE e.oid = CASE WHEN b.typcategory = 'A' AND b.typelem <> 0 THEN b.typelem ELSE b.oid END
        ) AS element
    FROM base AS b
    WHERE b.typtype <> 'd'
)
SELECT
    k.attname::text,
    pg_catalog.format_type(k.atttypid, NULL),
    pg_catalog.format_type(k.atttypid, -1),
    k.element = 'varchar'::regtype OR EXISTS (
        SELECT FROM pg_catalog.pg_opclass AS o
        JOIN pg_catalog.pg_am AS m ON m.oid = o.opcmethod AND m.amname = 'btree'
        WHERE o.opcintype = k.element AND o.opcdefault
    ),
    k.attcollation
FROM kinds AS k
ORDER BY k.attnum
