-- Bytes of a table without its indexes.
SELECT pg_catalog.pg_table_size(%(table)s::regclass)
