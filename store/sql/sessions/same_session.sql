-- Whether a statement runs in the server process of its session, which still has its lock; and the time.
SELECT
    pg_backend_pid() = %(pid)s::integer AND EXISTS (
        SELECT
        FROM pg_catalog.pg_locks AS l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid = pg_backend_pid()
          AND l.classid::bigint << 32 | l.objid::bigint = %(lock)s::bigint
    ),
    extract(epoch FROM statement_timestamp())::text
