-- The newest dead letters that match a filter; a filter that is NULL matches all. Of long values and errors only the first
-- characters are read, if there is a limit.
SELECT v.id, v.computation, v.stream, v.key::text,
       left(v.value, coalesce(%(characters)s::integer, length(v.value))) AS value, v."timestamp"::text, v.place,
       left(v.error, coalesce(%(characters)s::integer, length(v.error))) AS error, v.attempts,
       v.given_up_at::text, v.record_id::text, v.parked
FROM {dead_letters} AS v
WHERE v.id IN (SELECT f.id {matching_letters} ORDER BY f.id DESC LIMIT %(limit)s)
ORDER BY v.id DESC
