-- The oldest dead letters that match a filter, up to a number, and to the one whose value passes a limit of bytes: a portion
-- of an export, which goes on after the last of them.
SELECT v.id, v.computation, v.stream, v.key::text, v.value, v."timestamp"::text, v.place, v.error, v.attempts,
       v.given_up_at::text, v.record_id::text, v.parked
FROM {dead_letters} AS v
WHERE v.id IN (
    SELECT p.id
    FROM (
        SELECT m.id, sum(m.bytes) OVER (ORDER BY m.id) - m.bytes AS bytes_before
        FROM (SELECT f.id, octet_length(f.value) AS bytes {matching_letters} ORDER BY f.id LIMIT %(limit)s) AS m
    ) AS p
    WHERE p.bytes_before < %(most_bytes)s
)
ORDER BY v.id
