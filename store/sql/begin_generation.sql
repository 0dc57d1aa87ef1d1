-- Stores what newer code says, and in which incarnation of the server (begin_session.sql).
INSERT INTO {generation} (number, code, began_at, incarnation)
SELECT
    %(number)s, %(code)s::jsonb, now(),
    (
        SELECT extract(epoch FROM pg_postmaster_start_time())::text || ' ' || i.tableoid::text || ' ' || i.id::text
        FROM {incarnation} AS i
    )
