-- The newest dead letters that match a filter; a filter that is NULL matches all.
SELECT v.id, v.computation, v.stream, v.key::text, v.value, v."timestamp"::text, v.place, v.error, v.attempts,
       v.given_up_at::text, v.record_id::text
FROM {dead_letters} AS v
WHERE (%(ids)s::bigint[] IS NULL OR v.id = ANY(%(ids)s::bigint[]))
  AND (%(computation)s::text IS NULL OR v.computation = %(computation)s::text)
  AND (%(stream)s::text IS NULL OR v.stream = %(stream)s::text)
  AND (%(key)s::text IS NULL OR v.key::text = %(key)s::jsonb::text)
  AND (%(error)s::text IS NULL OR position(lower(%(error)s::text) IN lower(v.error)) > 0)
  AND (%(since)s::timestamptz IS NULL OR v.given_up_at >= %(since)s::timestamptz)
ORDER BY v.id DESC
LIMIT %(limit)s
