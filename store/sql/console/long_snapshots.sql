-- Snapshots that have kept dead rows for longer than a minute, the oldest first.
SELECT s.kind, s.what, s.pid, s.since::text, extract(epoch FROM clock_timestamp() - s.since)::float8
FROM {old_snapshots} AS s
WHERE s.since < clock_timestamp() - interval '1 minute' OR s.since IS NULL
ORDER BY s.transactions DESC, s.since
LIMIT %(most)s
