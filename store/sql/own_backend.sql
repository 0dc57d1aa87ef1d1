-- Who serves this connection.
SELECT pid, backend_start::text FROM pg_catalog.pg_stat_activity WHERE pid = pg_backend_pid()
