-- Where each partition of a source is read on. The position is JSON of `SourceProgress` (millwheel/core/source_progress.py).
SELECT l.computation, g.source, (l.position -> 'reader')::text
FROM {latest_commits} AS l
JOIN {log} AS g ON g.interval_id = l.interval_id AND g.source IS NOT NULL
ORDER BY 1, 2
