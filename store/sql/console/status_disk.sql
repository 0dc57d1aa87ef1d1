-- The bytes on disk by kind, why the oldest bucket is kept, and how far the folds are behind.
SELECT (
           SELECT coalesce(jsonb_object_agg(d.kind, d.bytes), '{{}}')
           FROM (SELECT u.kind, sum(u.bytes) AS bytes FROM {disk_use} AS u GROUP BY u.kind) AS d
       )::text AS kinds,
       (
           SELECT coalesce(jsonb_agg(jsonb_build_object('kept_by', o.kept_by, 'what', o.what, 'since', o.since)), '[]')
           FROM {oldest_bucket} AS o
           WHERE o.kept_by IS NOT NULL
       )::text AS oldest,
       (SELECT coalesce(sum(f.commits), 0)::bigint FROM {fold_lag} AS f) AS unfolded,
       (SELECT extract(epoch FROM max(f.age))::float8 FROM {fold_lag} AS f) AS fold_age,
       (SELECT coalesce(sum(u.dead_rows), 0)::bigint FROM {disk_use} AS u) AS dead_rows,
       (
           SELECT format('%%s %%s, since %%s', s.kind, s.what, s.since) FROM {old_snapshots} AS s
           WHERE s.since < clock_timestamp() - interval '1 minute' ORDER BY s.since LIMIT 1
       ) AS snapshot
