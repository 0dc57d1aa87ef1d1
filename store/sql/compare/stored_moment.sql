-- The pipeline's id, which a copy has too, and the number of the last commit of each interval.
SELECT p.id::text, (SELECT jsonb_object_agg(l.interval_id::text, l.n) FROM {latest_commits} AS l)::text FROM {pipeline} AS p
