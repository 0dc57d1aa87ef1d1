-- The age of the oldest snapshot that another session holds, which keeps dead rows alive.
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
FROM pg_catalog.pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid() AND datname = current_database()
  AND backend_type = 'client backend'
