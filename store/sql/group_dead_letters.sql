-- Dead letters by computation and error, with numbers in the error blanked.
SELECT v.computation, regexp_replace(v.error, '[0-9]+', 'N', 'g') AS kind, count(*) AS letters,
       count(DISTINCT v.key::text) AS keys, min(v.id) AS oldest, max(v.given_up_at)::text AS newest_at
FROM {dead_letters} AS v
WHERE v.id IN ({matching_letters})
GROUP BY v.computation, kind
ORDER BY count(*) DESC, kind
