-- Names and types of a table's columns, and whether a row may be without a value for each; no rows: there is no such table.
SELECT a.attname, format_type(a.atttypid, NULL), NOT a.attnotnull OR a.atthasdef OR a.attidentity <> ''
FROM pg_catalog.pg_attribute AS a
JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
