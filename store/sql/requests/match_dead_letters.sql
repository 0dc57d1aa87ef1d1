-- The numbers of the dead letters that match a filter, the oldest first, and of each: its computation, whether it is a
-- row without a key, whether its computation was removed, whether it is being retried, whether it is behind the low
-- watermark of its computation, and how many records wait behind it in its parked key.
WITH low AS MATERIALIZED (
    SELECT w.computation, extract(epoch FROM w.low_watermark) * 1000000 AS low_watermark FROM {watermarks} AS w
)
SELECT f.id, c.name, f.key IS NULL, c.removed_at IS NOT NULL,
       EXISTS (SELECT FROM {request} AS r WHERE r.letter = f.id AND r.outcome IS NULL),
       coalesce(f.ts < (SELECT w.low_watermark FROM low AS w WHERE w.computation = c.name), false),
       CASE WHEN f.parked = 'failed' THEN (
           SELECT count(*) FROM {dead_letter} AS b
           WHERE b.parked = 'waiting' AND b.computation = f.computation AND b.slot = f.slot AND b.key = f.key
       ) ELSE 0 END
{matching_letters}
ORDER BY f.id
