-- What a new connection has to know before it is used: the server process behind it, which incarnation
-- of the server this is (NULL: no session has named it yet), and what its commits wait for.
SELECT
    a.pid,
    a.backend_start::text,
    extract(epoch FROM pg_postmaster_start_time())::text || ' ' || i.tableoid::text || ' ' || i.id::text,
    current_setting('synchronous_commit'),
    current_setting('fsync')
FROM pg_catalog.pg_stat_activity AS a
LEFT JOIN {incarnation} AS i ON true
WHERE a.pid = pg_backend_pid()
