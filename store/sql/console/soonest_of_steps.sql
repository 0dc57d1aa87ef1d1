-- When the soonest timer of each step and kind is due, by the index.
WITH tail AS MATERIALIZED (
    SELECT DISTINCT ON (x.slot, x.computation, x.key, x.kind, x.tag) x.slot, x.computation, x.key, x.kind, x.tag, x.due
    FROM {fold} AS f
    CROSS JOIN LATERAL (
        SELECT * FROM {timer_change} AS c
        WHERE c.interval_id = f.interval_id AND c.n > f.through AND c.n < f.through + 1000000000
        OFFSET 0
    ) AS x
    WHERE %(with_changes)s
    ORDER BY x.slot, x.computation, x.key, x.kind, x.tag, x.n DESC
)
SELECT c.computation, k.kind, least(s.due, t.due)
FROM unnest(%(computations)s::smallint[]) AS c (computation)
CROSS JOIN (VALUES ('watermark'), ('wall')) AS k (kind)
LEFT JOIN LATERAL (
    SELECT r.due FROM {timer} AS r
    WHERE r.computation = c.computation AND r.kind = k.kind
      AND (r.computation, r.kind, r.slot, r.key, r.tag)
          NOT IN (SELECT x.computation, x.kind, x.slot, x.key, x.tag FROM tail AS x)
    ORDER BY r.due
    LIMIT 1
) AS s ON true
LEFT JOIN (
    SELECT x.computation, x.kind, min(x.due) AS due FROM tail AS x GROUP BY x.computation, x.kind
) AS t ON t.computation = c.computation AND t.kind = k.kind
WHERE s.due IS NOT NULL OR t.due IS NOT NULL
