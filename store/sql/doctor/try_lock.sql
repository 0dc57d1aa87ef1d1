-- Takes a lock that the session should still hold in its next transaction.
SELECT pg_backend_pid(), pg_try_advisory_lock(%(lock)s::bigint)
