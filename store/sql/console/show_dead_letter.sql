-- One dead letter, with its traceback.
SELECT v.id, v.computation, v.stream, v.key::text, v.value, v."timestamp"::text, v.place, v.error,
       v.attempts, v.given_up_at::text, v.record_id::text, v.parked, d.traceback
FROM {dead_letters} AS v
JOIN {dead_letter} AS d ON d.id = v.id
WHERE v.id = %(id)s
