-- Asked by the witness of a session behind a pooler: whether it has the server process of that session, or another
-- client has used the process since the session's last statement.
SELECT pg_backend_pid() = %(pid)s::integer OR EXISTS (
    SELECT
    FROM pg_catalog.pg_stat_activity AS a
    WHERE a.pid = %(pid)s AND extract(epoch FROM a.query_start) <> %(at)s::numeric
)
