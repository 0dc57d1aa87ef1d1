-- The newest batches of requests that match a filter, one row for each: its words are those of one of its requests, which
-- has been asked together with the others. The walk steps from batch to batch by the index, whatever their sizes, and
-- ends at the limit.
WITH RECURSIVE walk AS (
    (
        SELECT r.batch, r.id
        FROM {request} AS r
        WHERE (%(batch)s::bigint IS NULL OR r.batch = %(batch)s::bigint)
            AND (%(before)s::bigint IS NULL OR r.batch < %(before)s::bigint)
        ORDER BY r.batch DESC
        LIMIT 1
    )
    UNION ALL
    SELECT next.batch, next.id
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT r.batch, r.id FROM {request} AS r WHERE r.batch < w.batch ORDER BY r.batch DESC LIMIT 1
    ) AS next
    WHERE %(batch)s::bigint IS NULL
), chosen AS (
    SELECT one.*
    FROM walk AS w
    CROSS JOIN LATERAL (SELECT r.* FROM {request} AS r WHERE r.id = w.id LIMIT 1) AS one
    WHERE (%(verb)s::text IS NULL OR one.verb = %(verb)s::text)
        AND (%(actor)s::text IS NULL OR one.actor = %(actor)s::text)
    LIMIT %(limit)s
)
SELECT o.batch, o.asked_at::text, o.actor, o.reason, o.verb, c.name, CASE WHEN t.requests = 1 THEN o.key END,
       CASE WHEN coalesce(pg_column_size(o.payload), 0) <= coalesce(%(most_bytes)s::integer, 2147483647)
            THEN o.payload::text END,
       t.requests, t.still_open, t.done, t.not_done, t.settled_at::text, n.detail,
       coalesce(pg_column_size(o.payload), 0) > coalesce(%(most_bytes)s::integer, 2147483647)
FROM chosen AS o
LEFT JOIN {computation} AS c ON c.id = o.computation
CROSS JOIN LATERAL (
    SELECT count(*) AS requests, count(*) FILTER (WHERE r.outcome IS NULL) AS still_open,
           count(*) FILTER (WHERE r.outcome = 'done') AS done,
           count(*) FILTER (WHERE r.outcome IN ('refused', 'failed')) AS not_done, max(r.settled_at) AS settled_at
    FROM {request} AS r
    WHERE r.batch = o.batch
) AS t
CROSS JOIN LATERAL (
    SELECT r.detail FROM {request} AS r WHERE r.batch = o.batch ORDER BY r.settled_at DESC NULLS LAST LIMIT 1
) AS n
ORDER BY o.batch DESC
