SELECT
    (SELECT count(*) FROM {pending_productions}),
    (
        SELECT count(*) FROM {log} AS g
        JOIN {latest_commits} AS l ON l.interval_id = g.interval_id
        WHERE g.source IS NOT NULL AND (
            jsonb_array_length(coalesce(l.acked -> g.id::text -> 1, '[]')) > 0
            OR EXISTS (
                SELECT FROM {seen_run} AS s
                WHERE s.log = g.id AND s.last >= coalesce((l.acked -> g.id::text ->> 0)::bigint, 0)
            )
        )
    )
