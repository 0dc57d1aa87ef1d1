-- Number of stored dead letters by computation, and of each its parked keys, the records that wait in them, and the seconds
-- since the first of these keys was parked.
SELECT v.computation, count(*) FILTER (WHERE v.parked IS DISTINCT FROM 'waiting') AS kept,
       count(DISTINCT v.key::text) FILTER (WHERE v.parked IS NOT NULL) AS keys,
       count(*) FILTER (WHERE v.parked = 'waiting') AS waiting,
       coalesce(extract(epoch FROM clock_timestamp() - min(v.given_up_at) FILTER (WHERE v.parked IS NOT NULL)), 0)::float8 AS seconds
FROM {dead_letters} AS v
GROUP BY v.computation
