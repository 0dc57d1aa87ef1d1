-- Dead letters by computation and key; the largest groups, each with the error of its newest letter. In each row stand also
-- the numbers of all groups, and of all letters.
SELECT c.name, g.key, g.letters, g.waiting, g.oldest, n.id, n.error,
       (timestamptz 'epoch' + n.stamp * interval '1 microsecond')::text AS newest_at, g.all_groups, g.all_letters
FROM (
    SELECT d.computation, d.key, count(*) AS letters, count(*) FILTER (WHERE d.parked = 'waiting') AS waiting,
           min(d.id) AS oldest, max(d.id) AS newest, count(*) OVER () AS all_groups,
           (sum(count(*)) OVER ())::bigint AS all_letters
    FROM (
        SELECT f.computation, f.key, f.id, f.parked
        {matching_letters}
    ) AS d
    GROUP BY d.computation, d.key
    ORDER BY letters DESC, newest DESC
    LIMIT %(limit)s
) AS g
JOIN {computation} AS c ON c.id = g.computation
JOIN {dead_letter} AS n ON n.id = g.newest
ORDER BY g.letters DESC, g.newest DESC
