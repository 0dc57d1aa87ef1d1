-- The sessions that some sessions wait for, directly or through others, and that wait for no lock themselves. A role
-- without pg_read_all_stats sees only the process, user and application of other users' sessions.
WITH RECURSIVE chain (pid) AS (
    SELECT blocking.pid
    FROM unnest(%(pids)s::integer[]) AS waiting (pid)
    CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS blocking (pid)
    UNION
    SELECT blocking.pid
    FROM chain
    CROSS JOIN LATERAL unnest(pg_blocking_pids(chain.pid)) AS blocking (pid)
)
SELECT
    a.pid, a.usename, a.application_name, a.client_addr::text, a.state,
    extract(epoch FROM clock_timestamp() - a.xact_start)::float8, left(a.query, 200)
FROM chain AS c
JOIN pg_stat_activity AS a ON a.pid = c.pid
WHERE cardinality(pg_blocking_pids(c.pid)) = 0
ORDER BY a.xact_start
