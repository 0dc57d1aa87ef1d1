-- Renews a worker's lease, unless another worker has ended it. Only the database's clock decides on leases;
-- its time is returned, and all workers stamp by it. The time of the heartbeat never goes back and is not
-- before the newest stamp that the worker has given: an early close of a bucket relies on it if the clock
-- has gone back (close_bucket.sql).
--
-- The session of the heartbeats holds the worker's liveness lock (decision 58). Each heartbeat takes it once
-- more, which costs nothing, so that a session that replaces a broken one has it too. If a former session
-- still has the lock, the lease alone tells whether the worker lives. The process id shows whether a connection
-- pooler has begun to share sessions. The last column shows when an operator has turned outputs on or off.
UPDATE {worker}
SET heartbeat_at = greatest(heartbeat_at, now(), to_timestamp(%(stamp)s::bigint / 1e6)),
    lease_until = now() + %(lease_seconds)s * interval '1 second', lease_seconds = %(lease_seconds)s,
    backends = %(backends)s::jsonb, load = %(load)s::jsonb,
    locked_on = CASE
        WHEN pg_try_advisory_lock(hashtextextended(%(pipeline)s || ' ' || id::text, 2))
            THEN pg_postmaster_start_time()
    END
WHERE id = %(id)s AND NOT stopped
RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, pg_backend_pid(),
    (SELECT withholds FROM {pipeline})
