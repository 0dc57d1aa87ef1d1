-- The errors with which workers have ended, the same ones together, the newest first.
SELECT
    max(e.at)::text, min(e.at)::text, count(*), extract(epoch FROM clock_timestamp() - max(e.at))::float8,
    (array_agg(e.worker ORDER BY e.id DESC))[1]::text, (array_agg(e.host ORDER BY e.id DESC))[1],
    (array_agg(e.pid ORDER BY e.id DESC))[1], e.kind, e.error, e.computation, e.item, e.key::text, e.partition
FROM (SELECT * FROM {worker_ends} ORDER BY id DESC LIMIT %(looked_at)s) AS e
GROUP BY e.kind, e.error, e.computation, e.item, e.key, e.partition
ORDER BY max(e.id) DESC
LIMIT %(limit)s
