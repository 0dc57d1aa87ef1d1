-- Whether this login may mark a moment in the WAL, and the server can.
SELECT pg_catalog.has_function_privilege('pg_catalog.pg_create_restore_point(text)', 'EXECUTE')
   AND current_setting('wal_level') <> 'minimal' AND NOT pg_catalog.pg_is_in_recovery()
