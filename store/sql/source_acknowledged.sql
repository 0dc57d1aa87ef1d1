-- The stored position of a replayable source's log: rows before it are never read again.
SELECT (c.acked -> (%(log)s::bigint)::text ->> 0)::bigint
FROM {log} AS l
CROSS JOIN LATERAL (
    SELECT r.acked FROM {commit_record} AS r
    WHERE r.interval_id = l.interval_id ORDER BY r.n DESC LIMIT 1
) AS c
WHERE l.id = %(log)s::bigint
