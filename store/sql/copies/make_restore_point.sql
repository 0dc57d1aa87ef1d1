-- Marks this moment in the WAL, where this login may and the server can.
SELECT CASE
    WHEN pg_catalog.has_function_privilege('pg_catalog.pg_create_restore_point(text)', 'EXECUTE')
         AND current_setting('wal_level') <> 'minimal' AND NOT pg_catalog.pg_is_in_recovery()
    THEN pg_catalog.pg_create_restore_point(%(name)s)::text
END
