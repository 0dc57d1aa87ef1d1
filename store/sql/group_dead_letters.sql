-- Dead letters by computation and error, with numbers in the error blanked.
SELECT v.computation, regexp_replace(v.error, '[0-9]+', 'N', 'g') AS kind, count(*) AS letters,
       count(DISTINCT v.key::text) AS keys, min(v.id) AS oldest, max(v.given_up_at)::text AS newest_at
FROM {dead_letters} AS v
WHERE (%(ids)s::bigint[] IS NULL OR v.id = ANY(%(ids)s::bigint[]))
  AND (%(computation)s::text IS NULL OR v.computation = %(computation)s::text)
  AND (%(stream)s::text IS NULL OR v.stream = %(stream)s::text)
  AND (%(key)s::text IS NULL OR v.key::text = %(key)s::jsonb::text)
  AND (%(error)s::text IS NULL OR position(lower(%(error)s::text) IN lower(v.error)) > 0)
  AND (%(since)s::timestamptz IS NULL OR v.given_up_at >= %(since)s::timestamptz)
GROUP BY v.computation, kind
ORDER BY count(*) DESC, kind
