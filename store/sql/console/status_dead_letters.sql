-- Number of stored dead letters by computation, and of each its parked keys, the records that wait in them, and the seconds
-- since the first of these keys was parked.
SELECT c.name, d.kept, d.keys, d.waiting,
       coalesce(
           extract(epoch FROM clock_timestamp() - (timestamptz 'epoch' + d.since * interval '1 microsecond')), 0
       )::float8 AS seconds
FROM (
    SELECT l.computation, count(*) FILTER (WHERE l.parked IS DISTINCT FROM 'waiting') AS kept,
           count(DISTINCT (l.slot, l.key)) FILTER (WHERE l.parked IS NOT NULL) AS keys,
           count(*) FILTER (WHERE l.parked = 'waiting') AS waiting, min(l.stamp) FILTER (WHERE l.parked IS NOT NULL) AS since
    FROM {dead_letter} AS l
    GROUP BY l.computation
) AS d
JOIN {computation} AS c ON c.id = d.computation
