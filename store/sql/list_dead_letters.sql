-- The newest dead letters.
SELECT id, computation, stream, key::text, value, "timestamp"::text, place, error, attempts,
       given_up_at::text, record_id::text
FROM {dead_letters}
ORDER BY id DESC
LIMIT %(limit)s
