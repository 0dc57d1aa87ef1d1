-- Whether another client is connected to the server, to any database.
SELECT count(*) > 0
FROM pg_catalog.pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
