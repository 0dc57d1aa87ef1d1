-- The oldest dead letters that match a filter: a portion of an export, which goes on after the last of them.
SELECT v.id, v.computation, v.stream, v.key::text, v.value, v."timestamp"::text, v.place, v.error, v.attempts,
       v.given_up_at::text, v.record_id::text, v.parked
FROM {dead_letters} AS v
WHERE v.id IN (SELECT f.id {matching_letters} ORDER BY f.id LIMIT %(limit)s)
ORDER BY v.id
