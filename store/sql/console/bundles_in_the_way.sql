-- Open numbered bundles with members that only removed nodes could send again: strong productions and rows
-- of sources. An id begins with its log. The id of a weak production, which is stored with the bundle,
-- begins with a bit that no log has.
SELECT l.computation, (l.position -> 'bundle' ->> 'number')::bigint, count(*)
FROM {latest_commits} AS l
CROSS JOIN LATERAL jsonb_array_elements_text(l.position -> 'bundle' -> 'open') AS o (id)
JOIN {log} AS g ON g.id = ('x' || left(o.id, 16))::bit(64)::bigint
JOIN {key_interval} AS k ON k.id = g.interval_id
WHERE k.computation = ANY(%(computations)s::smallint[]) AND l.computation <> ALL(%(names)s::text[])
GROUP BY l.interval_id, 1, 2
ORDER BY 1, 2
