-- Registers a worker with a fresh lease, by the database's clock.
INSERT INTO {worker} (
    id, host, pid, pid_started, started_at, heartbeat_at, lease_until, stopped, backends, load,
    address, generation
)
VALUES (
    %(id)s, %(host)s, %(pid)s, %(pid_started)s, now(), now(),
    now() + %(lease_seconds)s * interval '1 second', false, '[]', '{{}}', %(address)s, %(generation)s
)
