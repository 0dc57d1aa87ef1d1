-- Requests that are not carried out yet, the bytes on disk and dead rows by kind, and the age of the oldest snapshot.
WITH kinds AS MATERIALIZED (
    SELECT u.kind, sum(u.bytes) AS bytes, sum(u.dead_rows) AS dead_rows FROM {disk_use} AS u GROUP BY u.kind
)
SELECT (SELECT count(*) FROM {request} WHERE outcome IS NULL) AS open_requests,
       (SELECT coalesce(jsonb_object_agg(d.kind, d.bytes), '{{}}') FROM kinds AS d)::text AS disk,
       (SELECT coalesce(jsonb_object_agg(d.kind, d.dead_rows), '{{}}') FROM kinds AS d)::text AS dead_rows,
       (
           SELECT coalesce(extract(epoch FROM clock_timestamp() - min(s.since)), 0)::float8 FROM {old_snapshots} AS s
       ) AS snapshot_seconds
