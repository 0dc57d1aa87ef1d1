-- The term of the leader if it is this worker, which takes or renews the leadership (decision 22). Only the database's
-- clock decides. The row is free once its lease is over, or that of the worker in it, which ends at once with a clean
-- stop or a lost liveness lock. A renewal writes only when half of the lease has passed, or if the clock went back.
WITH candidate AS (
    SELECT w.id FROM {worker} AS w WHERE w.id = %(worker)s AND NOT w.stopped AND w.lease_until > now()
), taken AS (
    UPDATE {leader} AS l
    SET worker = c.id, term = l.term + (l.worker IS DISTINCT FROM c.id)::integer,
        lease_until = now() + %(seconds)s * interval '1 second'
    FROM candidate AS c
    WHERE CASE
        WHEN l.worker = c.id THEN
            l.lease_until NOT BETWEEN now() + %(seconds)s / 2 * interval '1 second' AND now() + %(seconds)s * interval '1 second'
        ELSE
            l.lease_until <= now() OR NOT EXISTS (
                SELECT FROM {worker} AS w WHERE w.id = l.worker AND NOT w.stopped AND w.lease_until > now()
            )
    END
    RETURNING l.term
)
SELECT term FROM taken
UNION ALL
SELECT l.term FROM {leader} AS l JOIN candidate AS c ON c.id = l.worker WHERE NOT EXISTS (SELECT FROM taken) AND l.lease_until > now()
