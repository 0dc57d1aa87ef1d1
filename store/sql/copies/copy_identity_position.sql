-- The same for the sequence of an identity column, whose name may differ.
SELECT pg_catalog.setval(pg_catalog.pg_get_serial_sequence({table}, {column})::regclass, last_value, is_called) FROM {like}
