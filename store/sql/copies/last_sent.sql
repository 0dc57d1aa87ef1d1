-- The greatest number that was drawn for a record of an inbox.
SELECT coalesce(pg_catalog.pg_sequence_last_value(pg_catalog.pg_get_serial_sequence(%(table)s, 'seq')::regclass), 0)
