-- Bytes of the states and of the timers of a pipeline, without indexes.
SELECT pg_catalog.pg_table_size(%(state)s::regclass), pg_catalog.pg_table_size(%(timer)s::regclass)
