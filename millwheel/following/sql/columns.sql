-- The columns of a table that is followed, in their order, with their types. No rows: there is no such table.
SELECT c.column_name::text, c.data_type::text
FROM information_schema.columns AS c
WHERE c.table_schema = %(schema)s AND c.table_name = %(table)s
ORDER BY c.ordinal_position
