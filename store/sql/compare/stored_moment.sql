-- The pipeline or savepoint that it was copied from, and the last commit of each interval with its logical time.
SELECT p.origin, (SELECT jsonb_object_agg(l.interval_id::text, ARRAY[l.n, l.stamp]) FROM {latest_commits} AS l)::text
FROM {pipeline} AS p
