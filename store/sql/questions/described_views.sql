-- The views and sink tables of a pipeline that this login may read, with the comments on them and their columns.
SELECT c.relname::text,
       coalesce(pg_catalog.obj_description(c.oid, 'pg_class'), ''),
       pg_catalog.json_agg(
           pg_catalog.json_build_object(
               'name', a.attname, 'type', pg_catalog.format_type(a.atttypid, a.atttypmod),
               'comment', coalesce(pg_catalog.col_description(c.oid, a.attnum), '')
           )
           ORDER BY a.attnum
       )::text
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE n.nspname = %(schema)s
  AND (c.relkind = 'v' OR c.relkind IN ('r', 'p') AND c.relname <> ALL (%(tables)s))
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = c.oid)
  AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
GROUP BY c.oid, c.relname, c.relkind
ORDER BY c.relkind <> 'v', c.relname
