-- Records sent to one key that are stored still, acknowledged or not, the newest first. Of each log that its computation
-- reads, the newest rows are searched.
WITH logs AS (
    SELECT g.id, s.name AS sender, count(*) OVER () AS logs
    FROM {computation} AS c
    CROSS JOIN LATERAL jsonb_array_elements_text(c.upstream) AS u (name)
    JOIN {computation} AS s ON s.name = u.name
    JOIN {key_interval} AS k ON k.computation = s.id
    JOIN {log} AS g ON g.interval_id = k.id AND g.source IS NULL
    WHERE c.id = %(computation_id)s
    ORDER BY g.id DESC
    LIMIT %(most_logs)s
)
SELECT p.stamp, l.sender, t.name, left(e.value, %(most_characters)s)
FROM logs AS l
CROSS JOIN LATERAL (
    SELECT * FROM {production} AS r WHERE r.log = l.id
    ORDER BY r.last DESC
    LIMIT greatest(%(most_rows)s / l.logs, 10)
) AS p
CROSS JOIN LATERAL unnest(p.slots, p.keys, p.values) AS e (slot, key, value)
JOIN {stream} AS t ON t.id = p.stream
WHERE p.receiver = %(computation_id)s AND %(slot)s = ANY(p.slots) AND e.key = %(key)s
ORDER BY p.stamp DESC
LIMIT %(limit)s
