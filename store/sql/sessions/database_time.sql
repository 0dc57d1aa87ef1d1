-- The database's time, microseconds.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
