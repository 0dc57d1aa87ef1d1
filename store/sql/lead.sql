-- Takes the lock of who writes the wishes, or (held) keeps the session that has it from
-- falling silent: a session that says nothing for that long is ended, and the lock with it.
SELECT set_config('idle_session_timeout', %(timeout)s, false),
       %(held)s::boolean OR pg_try_advisory_lock(hashtextextended(%(pipeline)s, 1))
