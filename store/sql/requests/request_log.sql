-- The newest requests, one row for those that were asked together.
SELECT r.batch, min(r.asked_at)::text, min(r.actor), min(r.reason), min(r.verb),
       (SELECT c.name FROM {computation} AS c WHERE c.id = min(r.computation)),
       CASE WHEN count(*) = 1 THEN min(r.key) END, (array_agg(r.payload::text))[1], count(*),
       count(*) FILTER (WHERE r.outcome IS NULL), count(*) FILTER (WHERE r.outcome = 'done'),
       count(*) FILTER (WHERE r.outcome IN ('refused', 'failed')), max(r.settled_at)::text,
       (array_agg(r.detail ORDER BY r.settled_at DESC NULLS LAST))[1]
FROM {request} AS r
WHERE r.batch IN (
    SELECT DISTINCT x.batch
    FROM {request} AS x
    WHERE (%(batch)s::bigint IS NULL OR x.batch = %(batch)s)
        AND (%(before)s::bigint IS NULL OR x.batch < %(before)s)
    ORDER BY x.batch DESC
    LIMIT %(limit)s
)
GROUP BY r.batch
ORDER BY r.batch DESC
