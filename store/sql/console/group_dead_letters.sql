-- Dead letters by computation and error, with numbers in the error blanked; the largest groups. In each row stand also the
-- numbers of all groups, and of all letters.
SELECT c.name, g.kind, g.letters, g.keys, g.oldest,
       (timestamptz 'epoch' + g.newest * interval '1 microsecond')::text AS newest_at, g.all_groups, g.all_letters
FROM (
    SELECT d.computation, d.kind, count(*) AS letters, count(DISTINCT d.key) AS keys, min(d.id) AS oldest,
           max(d.stamp) AS newest, count(*) OVER () AS all_groups, (sum(count(*)) OVER ())::bigint AS all_letters
    FROM (
        SELECT f.computation, regexp_replace(f.error COLLATE "C", '[0-9]+', 'N', 'g') AS kind, f.key, f.id, f.stamp
        {matching_letters}
    ) AS d
    GROUP BY d.computation, d.kind
    ORDER BY letters DESC, d.kind
    LIMIT %(limit)s
) AS g
JOIN {computation} AS c ON c.id = g.computation
ORDER BY g.letters DESC, g.kind
