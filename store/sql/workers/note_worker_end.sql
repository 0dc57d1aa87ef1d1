-- Notes the error with which a worker has ended, and deletes all but the newest ones.
WITH noted AS (
    INSERT INTO {worker_end} (at, worker, host, pid, kind, error, computation, item, key, partition)
    VALUES (
        clock_timestamp(), %(worker)s, %(host)s, %(pid)s, %(kind)s, %(error)s, %(computation)s, %(item)s,
        %(key)s, %(partition)s
    )
    RETURNING id
)
DELETE FROM {worker_end} AS e USING noted WHERE e.id <= noted.id - %(keep)s::bigint
