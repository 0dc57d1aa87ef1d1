-- The steps with keys, in the order of the graph, and how far event time is there: in the interval that is furthest behind.
SELECT c.id, c.name, min(l.input_watermark)
FROM {computation} AS c
JOIN {latest_commits} AS l ON l.computation = c.name
WHERE c.kind <> 'injector' AND c.removed_at IS NULL
GROUP BY c.id, c.name
ORDER BY c.id
