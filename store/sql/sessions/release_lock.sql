-- Releases the lock of a session that was not proven, if this statement runs in the same server process.
SELECT pg_advisory_unlock(%(lock)s::bigint)
FROM pg_catalog.pg_locks AS l
WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.pid = pg_backend_pid()
  AND l.classid::bigint << 32 | l.objid::bigint = %(lock)s::bigint
