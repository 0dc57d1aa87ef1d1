-- The server processes of workers, and whether this login may end them. They are read as text: a pooler's have more than
-- a start.
SELECT (b ->> 0)::integer AS pid, b ->> 1 AS started,
       pg_catalog.pg_has_role(a.usesysid, 'USAGE') OR pg_catalog.pg_has_role('pg_signal_backend', 'USAGE') AS may_end,
       a.usename::text AS login
FROM {worker} AS w
CROSS JOIN jsonb_array_elements(w.backends) AS b
JOIN pg_catalog.pg_stat_activity AS a ON a.pid = (b ->> 0)::integer
WHERE NOT w.stopped
