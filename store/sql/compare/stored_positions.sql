-- The partitions of sources, and how far each is read and acknowledged.
SELECT l.computation, g.source, l.position -> 'reader', l.position -> 'ended', l.acked -> g.id::text
FROM {latest_commits} AS l
JOIN {log} AS g ON g.interval_id = l.interval_id AND g.source IS NOT NULL
ORDER BY l.computation, g.source
