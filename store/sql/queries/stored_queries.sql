-- The number of changes so far, and the queries that are not dropped, in the order of their submission: one
-- statement, so one snapshot.
SELECT
    coalesce(max(q.revision), 0),
    coalesce(
        jsonb_agg(
            jsonb_build_object(
                'name', q.name, 'text', q.text, 'avoided', q.avoided, 'steps', q.steps,
                'targets', q.targets, 'generation', q.generation, 'submitted_at', q.submitted_at,
                'submitted_by', q.submitted_by
            )
            ORDER BY q.id
        ) FILTER (WHERE q.dropped_at IS NULL),
        '[]'
    )::text
FROM {query} AS q
