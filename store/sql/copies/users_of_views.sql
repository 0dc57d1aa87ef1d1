-- The sessions that have locks on some relations: each reader keeps those of its statement until its transaction ends.
SELECT DISTINCT
    a.pid, a.usename, a.application_name, a.client_addr::text, a.state,
    extract(epoch FROM clock_timestamp() - a.xact_start)::float8, left(a.query, 200)
FROM pg_catalog.pg_locks AS l
JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
  AND l.relation = ANY(%(relations)s::text[]::regclass[])
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
ORDER BY 6 DESC NULLS LAST
