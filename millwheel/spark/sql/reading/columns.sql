-- The columns of one relation, in order: domains resolved to the underlying type, arrays to their
-- element type. `type` is "enum" for all enums, and empty for other types that are not built in.
WITH RECURSIVE resolved (attnum, depth, type, modifier) AS (
    SELECT attnum, 0, atttypid, atttypmod
    FROM pg_catalog.pg_attribute
    WHERE attrelid = %(relation)s AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT resolved.attnum, resolved.depth + 1, domain.typbasetype, domain.typtypmod
    FROM resolved
    JOIN pg_catalog.pg_type AS domain ON domain.oid = resolved.type AND domain.typtype = 'd'
),
beneath AS (
    SELECT DISTINCT ON (attnum) attnum, type, modifier
    FROM resolved
    ORDER BY attnum, depth DESC
)
SELECT
    attribute.attname AS name,
    pg_catalog.format_type(attribute.atttypid, attribute.atttypmod) AS declared,
    CASE
        WHEN item.typtype = 'e' THEN 'enum'
        WHEN item.typnamespace = 'pg_catalog'::regnamespace THEN item.typname::text
        ELSE ''
    END AS type,
    beneath.modifier AS modifier,
    whole.typcategory = 'A' AS is_array,
    COALESCE(pg_collation.collisdeterministic, true) AS deterministic
FROM beneath
JOIN pg_catalog.pg_attribute AS attribute
    ON attribute.attrelid = %(relation)s AND attribute.attnum = beneath.attnum
JOIN pg_catalog.pg_type AS whole ON whole.oid = beneath.type
JOIN pg_catalog.pg_type AS item
    ON item.oid = CASE WHEN whole.typcategory = 'A' THEN whole.typelem ELSE whole.oid END
LEFT JOIN pg_catalog.pg_collation ON pg_collation.oid = attribute.attcollation
ORDER BY beneath.attnum
