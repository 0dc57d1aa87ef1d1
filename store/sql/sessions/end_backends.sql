-- Ends the server processes of a dead worker. Process id and start must both match, because the system may
-- have given the id to another process (I4). Behind a connection pooler a process serves others later: there the
-- start is followed by the key of the lock that the worker's session holds.
SELECT pg_terminate_backend(a.pid)
FROM pg_catalog.pg_stat_activity AS a
JOIN unnest(%(pid)s::integer[], %(started)s::text[]) AS x (pid, started) ON a.pid = x.pid
WHERE a.pid <> pg_backend_pid() AND (
    a.backend_start::text = x.started OR EXISTS (
        SELECT
        FROM pg_catalog.pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid = a.pid
          AND x.started = a.backend_start::text || ' ' || (l.classid::bigint << 32 | l.objid::bigint)::text
    )
)
