-- Renews a worker's lease, unless somebody ended it. The database's clock decides on leases,
-- nobody else's; it is told, so that all workers stamp by it.
UPDATE {worker}
SET heartbeat_at = now(), lease_until = now() + %(lease_seconds)s * interval '1 second',
    backends = %(backends)s::jsonb, load = %(load)s::jsonb
WHERE id = %(id)s AND NOT stopped
RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
