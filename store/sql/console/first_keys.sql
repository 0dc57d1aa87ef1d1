-- Keys of one computation with a folded state, after one of them, in the order of their slots. One step down the index for
-- each key, and at most two for each slot without any, whatever other computations keep there. If that takes more steps
-- than are allowed, the last row has no key: it is the place to go on from.
WITH RECURSIVE walk AS (
    (
        SELECT 1 AS steps, r.slot, r.computation, r.key
        FROM {state} AS r
        WHERE (r.slot, r.computation, r.key) > (%(slot)s, %(computation_id)s::smallint, %(key)s)
        ORDER BY r.slot, r.computation, r.key, r.entry
        LIMIT 1
    )
    UNION ALL
    SELECT w.steps + 1, n.slot, n.computation, n.key
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT r.slot, r.computation, r.key
        FROM {state} AS r
        WHERE (r.slot, r.computation, r.key) > (
            CASE WHEN w.computation > %(computation_id)s THEN w.slot + 1 ELSE w.slot END,
            %(computation_id)s::smallint,
            CASE WHEN w.computation = %(computation_id)s THEN w.key ELSE '' END
        )
        ORDER BY r.slot, r.computation, r.key, r.entry
        LIMIT 1
    ) AS n
    WHERE w.steps < %(most_steps)s
)
SELECT w.steps, CASE WHEN w.computation > %(computation_id)s THEN w.slot + 1 ELSE w.slot END,
       CASE WHEN w.computation = %(computation_id)s THEN w.key END
FROM walk AS w
WHERE w.computation = %(computation_id)s OR w.steps = %(most_steps)s
LIMIT %(limit)s
