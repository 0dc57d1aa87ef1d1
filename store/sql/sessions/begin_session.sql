-- Read on each new connection before it is used: the server process behind it, whether the server is a standby,
-- its incarnation (NULL: no session has named it yet), whether commits wait for the disk, and whether the login may
-- run read_control.sql.
SELECT
    a.pid,
    a.backend_start::text,
    pg_is_in_recovery(),
    ({this_incarnation}),
    current_setting('synchronous_commit'),
    current_setting('fsync'),
    (
        SELECT bool_and(coalesce(has_function_privilege(to_regprocedure(f.name), 'EXECUTE'), false))
        FROM (
            VALUES ('pg_control_system()'), ('pg_current_wal_insert_lsn()'), ('pg_walfile_name(pg_lsn)')
        ) AS f (name)
    )
FROM pg_catalog.pg_stat_activity AS a
WHERE a.pid = pg_backend_pid()
