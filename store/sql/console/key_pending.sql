-- Records sent to one key that are not acknowledged, the oldest first.
SELECT sender, stream, id::text, value::text, "timestamp"::text, produced_at::text
FROM {pending_of}(%(computation)s, %(key)s::jsonb, %(slot)s)
LIMIT %(most_pending)s
