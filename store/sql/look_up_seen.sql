-- Which of these ids (told "maybe" by a Bloom filter) are really in one bucket: all between `low`
-- and `high`, which are the same but for weak productions, whose ids end with a digest.
SELECT s.id
FROM unnest(%(slot)s::integer[], %(low)s::uuid[], %(high)s::uuid[]) AS x (slot, low, high)
CROSS JOIN LATERAL (
    SELECT r.id FROM {table} AS r
    WHERE r.slot = x.slot AND r.computation = %(computation)s AND r.id BETWEEN x.low AND x.high
    OFFSET 0
) AS s
