-- The tables of a schema, parents before the buckets that inherit from them, with the parts that LIKE leaves out.
SELECT c.relname::text AS name, c.relkind::text AS kind, p.relname::text AS parent,
       c.relpersistence = 'u' AS is_unlogged, 'WITH (' || array_to_string(c.reloptions, ', ') || ')' AS options,
       pg_catalog.pg_table_size(c.oid) AS bytes,
       pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::bigint AS blocks,
       pg_catalog.obj_description(c.oid, 'pg_class') AS comment,
       (
           SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_catalog.pg_attribute AS a
           WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
       ) AS columns
FROM pg_catalog.pg_class AS c
LEFT JOIN pg_catalog.pg_inherits AS i ON i.inhrelid = c.oid
LEFT JOIN pg_catalog.pg_class AS p ON p.oid = i.inhparent
WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s)
  AND c.relkind IN ('r', 'p', 'f')
ORDER BY p.relname IS NOT NULL, c.relname
