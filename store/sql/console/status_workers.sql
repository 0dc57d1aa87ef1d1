-- Workers that have not shut down cleanly, with the remaining seconds of their leases and the load that
-- they reported last.
SELECT w.id::text, w.host, w.pid, w.pid_started, w.started_at, w.heartbeat_at,
       extract(epoch FROM w.lease_until - clock_timestamp())::float8,
       (SELECT count(*)::integer FROM {key_interval} AS k WHERE k.owner = w.id),
       w.generation, w.address, (w.load ->> 'cpu')::float8,
       (w.load ->> 'rss_bytes')::bigint, w.load #>> '{{blocked,by}}' AS blocked_by, w.load ->> 'waits' AS waits
FROM {worker} AS w
WHERE NOT w.stopped
ORDER BY w.started_at
