-- Ends the server processes of a dead worker. Process id and start must both match, because the system may
-- have given the id to another process (I4).
SELECT pg_terminate_backend(a.pid)
FROM pg_catalog.pg_stat_activity AS a
JOIN unnest(%(pid)s::integer[], %(started)s::text[]) AS x (pid, started)
    ON a.pid = x.pid AND a.backend_start::text = x.started
WHERE a.pid <> pg_backend_pid()
