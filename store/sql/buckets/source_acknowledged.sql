-- Whether no row of a replayable source's log before `high` is ever delivered again: the stored position is
-- past it (or there is no such log, because the injector was removed), and no stored weak production, which
-- may be sent again, comes from such a row.
SELECT
    NOT EXISTS (
        SELECT FROM {straggler} AS s
        WHERE s.origin = %(log)s::bigint AND s.place < %(high)s::bigint AND s.origin <> 0  -- by index
    )
    AND NOT EXISTS (
        SELECT
        FROM {log} AS l
        CROSS JOIN LATERAL (
            SELECT r.acked FROM {commit_record} AS r
            WHERE r.interval_id = l.interval_id ORDER BY r.n DESC LIMIT 1
        ) AS c
        WHERE l.id = %(log)s::bigint
          AND coalesce((c.acked -> (%(log)s::bigint)::text ->> 0)::bigint, 0) < %(high)s::bigint
    )
