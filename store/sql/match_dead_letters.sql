-- The numbers of the dead letters that match a filter, the oldest first, and of each: its computation, whether it is a
-- row without a key, whether it is being retried, and whether it is behind the low watermark of its computation.
SELECT v.id, v.computation, v.key IS NULL,
       EXISTS (SELECT FROM {request} AS r WHERE r.letter = v.id AND r.outcome IS NULL),
       coalesce(v."timestamp" < w.low_watermark, false)
FROM {dead_letters} AS v
LEFT JOIN {watermarks} AS w ON w.computation = v.computation
WHERE v.id IN ({matching_letters})
ORDER BY v.id
