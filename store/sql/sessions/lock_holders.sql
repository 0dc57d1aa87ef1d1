-- The sessions that hold locks under which no table of the store's pipelines can be read.
SELECT DISTINCT
    a.pid, a.usename, a.application_name, a.client_addr::text, a.state,
    extract(epoch FROM clock_timestamp() - a.xact_start)::float8, left(a.query, 200)
FROM pg_locks AS l
JOIN pg_class AS c ON c.oid = l.relation
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.granted AND l.mode = 'AccessExclusiveLock' AND l.pid <> pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND EXISTS (
      SELECT FROM pg_class AS p WHERE p.relnamespace = n.oid AND p.relname = 'commit_record'
  )
