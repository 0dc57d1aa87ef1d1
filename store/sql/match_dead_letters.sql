-- The numbers of the dead letters that match a filter, the oldest first, and of each: its computation, whether it is a
-- row without a key, whether it is being retried, and whether it is behind the low watermark of its computation.
SELECT v.id, v.computation, v.key IS NULL,
       EXISTS (SELECT FROM {request} AS r WHERE r.letter = v.id AND r.outcome IS NULL),
       coalesce(v."timestamp" < w.low_watermark, false)
FROM {dead_letters} AS v
LEFT JOIN {watermarks} AS w ON w.computation = v.computation
WHERE (%(ids)s::bigint[] IS NULL OR v.id = ANY(%(ids)s::bigint[]))
  AND (%(computation)s::text IS NULL OR v.computation = %(computation)s::text)
  AND (%(stream)s::text IS NULL OR v.stream = %(stream)s::text)
  AND (%(key)s::text IS NULL OR v.key::text = %(key)s::jsonb::text)
  AND (%(error)s::text IS NULL OR position(lower(%(error)s::text) IN lower(v.error)) > 0)
  AND (%(since)s::timestamptz IS NULL OR v.given_up_at >= %(since)s::timestamptz)
ORDER BY v.id
