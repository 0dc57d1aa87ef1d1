-- Parked keys, those with the most records behind them first, each with its first records. In each row stand also the
-- numbers of all parked keys, and of all records that wait.
SELECT c.name, g.key, (timestamptz 'epoch' + g.since * interval '1 microsecond')::text AS since, g.waiting,
       {micros_to_time}(g.oldest)::text AS oldest, g.failed, l.error, l.attempts, w.first_records, g.all_keys, g.all_waiting
FROM (
    SELECT d.computation, d.slot, d.key, min(d.stamp) AS since, count(*) FILTER (WHERE d.parked = 'waiting') AS waiting,
           min(d.ts) AS oldest, min(d.id) FILTER (WHERE d.parked = 'failed') AS failed, count(*) OVER () AS all_keys,
           (sum(count(*) FILTER (WHERE d.parked = 'waiting')) OVER ())::bigint AS all_waiting
    FROM {dead_letter} AS d
    WHERE d.parked IS NOT NULL
      AND (%(computation)s::text IS NULL
           OR d.computation = (SELECT x.id FROM {computation} AS x WHERE x.name = %(computation)s::text))
      AND (%(key)s::text IS NULL OR d.key = %(key)s::text)
    GROUP BY d.computation, d.slot, d.key
    HAVING %(error)s::text IS NULL
        OR bool_or(d.parked = 'failed' AND position(lower(%(error)s::text) IN lower(d.error)) > 0)
    ORDER BY waiting DESC, since
    LIMIT %(limit)s
) AS g
JOIN {computation} AS c ON c.id = g.computation
LEFT JOIN {dead_letter} AS l ON l.id = g.failed
CROSS JOIN LATERAL (
    SELECT json_agg(
        json_build_object('id', b.id, 'stream', b.stream, 'value', left(b.value, %(characters)s::integer)) ORDER BY b.id
    )::text AS first_records
    FROM (
        SELECT r.id, r.stream, r.value
        FROM {dead_letter} AS r
        WHERE r.parked = 'waiting' AND r.computation = g.computation AND r.slot = g.slot AND r.key = g.key
        ORDER BY r.id
        LIMIT %(records)s
    ) AS b
) AS w
ORDER BY g.waiting DESC, g.since
