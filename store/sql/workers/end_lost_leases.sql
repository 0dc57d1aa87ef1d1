-- Ends the leases of suspected workers whose liveness lock is free: the process, or its machine's connection
-- to the server, is gone (decision 58). A worker that never held the lock, or held it on the server before it
-- started again, is not judged. A wrong guess is safe: every commit is fenced (I3), and the next heartbeat
-- renews the lease.
WITH suspected AS MATERIALIZED (
    SELECT w.id
    FROM {worker} AS w
    WHERE w.id = ANY(%(suspects)s::uuid[]) AND NOT w.stopped AND w.lease_until > now()
      AND w.locked_on = pg_postmaster_start_time()
    ORDER BY w.id
    FOR NO KEY UPDATE OF w SKIP LOCKED
), lost AS MATERIALIZED (
    SELECT s.id
    FROM suspected AS s
    WHERE pg_try_advisory_xact_lock(hashtextextended(%(pipeline)s || ' ' || s.id::text, 2))
)
UPDATE {worker} AS w
SET lease_until = now(), locked_on = NULL
FROM lost AS l
WHERE w.id = l.id
RETURNING w.id::text
