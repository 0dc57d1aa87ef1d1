-- The columns of bytes of a table that is followed: JSON has them as hex otherwise. NULL: there is no such table.
SELECT c.column_name::text, c.data_type = 'bytea'
FROM information_schema.columns AS c
WHERE c.table_schema = %(schema)s AND c.table_name = %(table)s
