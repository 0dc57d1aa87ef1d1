-- Makes the settings of a proven session behind a pooler, and takes its lock again.
SELECT pg_backend_pid() = %(pid)s::integer AND pg_try_advisory_lock(%(lock)s::bigint) AND (
    SELECT count(set_config(s.key, s.value, false)) >= 0
    FROM jsonb_each_text(%(settings)s::jsonb) AS s
)
