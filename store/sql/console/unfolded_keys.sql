-- Keys of one computation, after one of them, whose state the newest commits that are not folded have written.
SELECT DISTINCT e.slot, e.key
FROM (
    SELECT c.slots, c.keys
    FROM {key_interval} AS k
    JOIN {fold} AS f ON f.interval_id = k.id
    CROSS JOIN LATERAL (
        SELECT r.slots, r.keys FROM {state_change} AS r
        WHERE r.interval_id = f.interval_id AND r.n > f.through AND r.n < f.through + 1000000000
        ORDER BY r.n DESC
        LIMIT 1000
    ) AS c
    WHERE k.computation = %(computation_id)s
    LIMIT 2000
) AS t
CROSS JOIN LATERAL unnest(t.slots, t.keys) AS e (slot, key)
WHERE (e.slot, e.key) > (%(slot)s, %(key)s)
