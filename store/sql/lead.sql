-- Takes the lock of the leader, which writes the wishes, or (held) keeps the session with that lock alive:
-- the server ends a session that is idle for longer than the timeout, and releases its lock.
SELECT set_config('idle_session_timeout', %(timeout)s, false),
       %(held)s::boolean OR pg_try_advisory_lock(hashtextextended(%(pipeline)s, 1))
