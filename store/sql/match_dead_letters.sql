-- The numbers of the dead letters that match a filter, the oldest first, and of each: its computation, whether it is a
-- row without a key, whether it is being retried, whether it is behind the low watermark of its computation, and how many
-- records wait behind it in its parked key.
SELECT v.id, v.computation, v.key IS NULL,
       EXISTS (SELECT FROM {request} AS r WHERE r.letter = v.id AND r.outcome IS NULL),
       coalesce(v."timestamp" < w.low_watermark, false),
       CASE WHEN d.parked = 'failed' THEN (
           SELECT count(*) FROM {dead_letter} AS b
           WHERE b.parked = 'waiting' AND b.computation = d.computation AND b.slot = d.slot AND b.key = d.key
       ) ELSE 0 END
FROM {dead_letters} AS v
JOIN {dead_letter} AS d ON d.id = v.id
LEFT JOIN {watermarks} AS w ON w.computation = v.computation
WHERE v.id IN ({matching_letters})
ORDER BY v.id
