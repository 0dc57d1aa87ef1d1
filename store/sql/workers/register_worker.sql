-- Registers a worker with a fresh lease, by the database's clock. A worker that starts over registers
-- again, unless another worker has ended it.
INSERT INTO {worker} AS w (
    id, host, pid, pid_started, started_at, heartbeat_at, lease_until, lease_seconds, stopped,
    backends, load, address, generation
)
VALUES (
    %(id)s, %(host)s, %(pid)s, %(pid_started)s, now(), now(),
    now() + %(lease_seconds)s * interval '1 second', %(lease_seconds)s, false, '[]', %(load)s,
    %(address)s, %(generation)s
)
ON CONFLICT (id) DO UPDATE
SET heartbeat_at = greatest(w.heartbeat_at, excluded.heartbeat_at),
    lease_until = excluded.lease_until, lease_seconds = excluded.lease_seconds, backends = excluded.backends,
    load = excluded.load, address = excluded.address, generation = excluded.generation, locked_on = NULL
WHERE NOT w.stopped
