-- Numbers that programs have drawn for records of inboxes since the moment of a savepoint; some of them may not be used.
SELECT coalesce(pg_catalog.pg_sequence_last_value(pg_get_serial_sequence({replaced}, 'seq')::regclass), 0)
     - coalesce(pg_catalog.pg_sequence_last_value(pg_get_serial_sequence({savepoint}, 'seq')::regclass), 0)
