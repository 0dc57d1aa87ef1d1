-- The pending timers and holds of one key, the soonest first.
SELECT kind, tag, due::text, hold::text, set_at::text
FROM {timers_of}(%(computation)s, %(key)s::jsonb, %(slot)s)
