-- Waits beside those of records: requests of operators, and the removal of dead rows for the oldest snapshot.
SELECT r.requests, r.seconds AS request_seconds, s.seconds AS snapshot_seconds
FROM (
    SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(greatest(asked_at, due_at))), 0)::float8
    FROM {request} WHERE outcome IS NULL AND due_at <= clock_timestamp()
) AS r (requests, seconds),
(
    SELECT coalesce(extract(epoch FROM clock_timestamp() - min(since)), 0)::float8 FROM {old_snapshots}
) AS s (seconds)
