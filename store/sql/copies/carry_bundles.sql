-- Bundles up to the last one of the replaced schema may be outside. To a restored scope they are of a time before: a database
-- that has one of them lacks nothing, and later bundles get greater numbers (decision 40).
UPDATE {restored} AS c
SET position = coalesce(c.position, '{{}}') || jsonb_build_object(
    'bundle', coalesce(c.position -> 'bundle', '{{"number": 0}}') || jsonb_build_object('inherited', r.number)
)
FROM (
    SELECT DISTINCT ON (interval_id) interval_id, (position -> 'bundle' ->> 'number')::bigint AS number
    FROM {replaced}
    WHERE position ? 'bundle'
    ORDER BY interval_id, n DESC
) AS r
WHERE c.interval_id = r.interval_id
  AND c.n = (SELECT max(l.n) FROM {restored} AS l WHERE l.interval_id = c.interval_id)
