-- Renews a worker's lease. The database's clock decides on leases, nobody else's.
UPDATE {worker}
SET heartbeat_at = now(), lease_until = now() + %(lease_seconds)s * interval '1 second',
    backends = %(backends)s::jsonb, load = %(load)s::jsonb
WHERE id = %(id)s
