-- The low watermark of each step, and its number; of one that has not committed yet, NULL.
SELECT c.name, c.kind, c.id, min(l.low_watermark), min(l.input_watermark)
FROM {computation} AS c
LEFT JOIN {latest_commits} AS l ON l.computation = c.name
WHERE c.removed_at IS NULL
GROUP BY c.name, c.kind, c.id
ORDER BY c.id
