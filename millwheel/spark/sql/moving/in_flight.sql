SELECT
    (SELECT count(*) FROM {pending_productions}),
    (
        SELECT count(*) FROM {log} AS g
        JOIN {latest_commits} AS l ON l.interval_id = g.interval_id
        WHERE g.source IS NOT NULL AND (
            jsonb_array_length(coalesce(l.acked -> g.id::text -> 1, '[]')) > 0
            OR EXISTS (
                SELECT FROM {seen_record} AS s
                WHERE s.id >= {record_id}(g.id, coalesce((l.acked -> g.id::text ->> 0)::bigint, 0))
                  AND s.id < {record_id}(g.id + 1, 0)
            )
        )
    )
