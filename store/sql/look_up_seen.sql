-- Which of these ids (told "maybe" by a Bloom filter) are really in one bucket: all between `low`
-- and `high`, which are the same but for weak productions, whose ids end with a mark and a digest. In
-- whatever slot: a deploy may have changed the key under which a record comes again.
SELECT s.id
FROM unnest(%(low)s::uuid[], %(high)s::uuid[]) AS x (low, high)
CROSS JOIN LATERAL (
    SELECT r.id FROM {table} AS r
    WHERE r.computation = %(computation)s AND r.id BETWEEN x.low AND x.high
    OFFSET 0
) AS s
