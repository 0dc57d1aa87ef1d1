-- Dead letters by computation and error, with numbers in the error blanked.
SELECT c.name, g.kind, g.letters, g.keys, g.oldest,
       (timestamptz 'epoch' + g.newest * interval '1 microsecond')::text AS newest_at
FROM (
    SELECT d.computation, d.kind, count(*) AS letters, count(DISTINCT d.key) AS keys, min(d.id) AS oldest,
           max(d.stamp) AS newest
    FROM (
        SELECT f.computation, regexp_replace(f.error, '[0-9]+', 'N', 'g') AS kind, f.key, f.id, f.stamp
        {matching_letters}
    ) AS d
    GROUP BY d.computation, d.kind
) AS g
JOIN {computation} AS c ON c.id = g.computation
ORDER BY g.letters DESC, g.kind
