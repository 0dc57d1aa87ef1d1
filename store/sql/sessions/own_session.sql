-- The first statement of a connection, with the server process behind it and its time. If that is the process
-- which was announced to the client, no connection pooler stands between: the settings are made. Otherwise they
-- could reach other clients, and the session takes the lock by which it is proven.
SELECT
    pg_backend_pid(),
    extract(epoch FROM statement_timestamp())::text,
    CASE
        WHEN pg_backend_pid() = %(announced)s::integer THEN (
            SELECT count(set_config(s.key, s.value, false)) >= 0
            FROM jsonb_each_text(%(settings)s::jsonb) AS s
        )
        ELSE pg_try_advisory_lock(%(lock)s::bigint)
    END
