-- The scopes of sinks outside the store, each with the bundle that is being delivered.
SELECT sink, scope, acked, open, open_records,
       extract(epoch FROM clock_timestamp() - open_since)::float8 AS open_seconds, waiting
FROM {sinks}
ORDER BY sink, scope
