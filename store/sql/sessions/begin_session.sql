-- Read on each new connection before it is used: the server process behind it, the incarnation of the server
-- (NULL: no session has named it yet), and whether commits wait for the disk.
SELECT
    a.pid,
    a.backend_start::text,
    ({this_incarnation}),
    current_setting('synchronous_commit'),
    current_setting('fsync')
FROM pg_catalog.pg_stat_activity AS a
WHERE a.pid = pg_backend_pid()
