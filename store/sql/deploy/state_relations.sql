-- Relations with the name of a state view, with name, type and comment of each column, in order.
SELECT
    c.relname::text,
    c.relkind = 'v',
    coalesce(pg_catalog.obj_description(c.oid, 'pg_class'), ''),
    coalesce(
        (
            SELECT jsonb_agg(
                jsonb_build_array(
                    a.attname,
                    pg_catalog.format_type(a.atttypid, NULL),
                    coalesce(pg_catalog.col_description(c.oid, a.attnum), '')
                )
                ORDER BY a.attnum
            )
            FROM pg_catalog.pg_attribute AS a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ),
        '[]'
    )::text
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND starts_with(c.relname::text, %(prefix)s)
