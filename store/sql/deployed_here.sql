-- Whether the pipeline was deployed first in this incarnation of the server (begin_session.sql).
SELECT
    g.incarnation
    = extract(epoch FROM pg_postmaster_start_time())::text || ' ' || i.tableoid::text || ' ' || i.id::text
FROM {generation} AS g
CROSS JOIN {incarnation} AS i
ORDER BY g.number
LIMIT 1
