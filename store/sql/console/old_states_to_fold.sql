-- Number of values of other versions than the code's that are committed, and not folded yet.
SELECT count(*)
FROM {fold} AS f
CROSS JOIN LATERAL (
    SELECT c.computation, c.version FROM {state_changes} AS c
    WHERE c.interval_id = f.interval_id AND c.n > f.through AND c.n < f.through + 1000000000
        AND c.value IS NOT NULL
    OFFSET 0
) AS c
JOIN unnest(%(computations)s::smallint[], %(versions)s::smallint[]) AS w (computation, version)
    ON w.computation = c.computation AND w.version <> c.version
