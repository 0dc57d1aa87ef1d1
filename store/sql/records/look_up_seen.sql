-- Finds those of some ids in no order (a Bloom filter said "maybe") that are in one bucket: all between `low` and
-- `high`. Both are the same id, except for weak productions, which have ids that end with a mark and a
-- digest. It looks in all slots, because a deploy may have changed the key of a record that comes again.
SELECT s.id
FROM unnest(%(low)s::uuid[], %(high)s::uuid[]) AS x (low, high)
CROSS JOIN LATERAL (
    SELECT r.id FROM {table} AS r
    WHERE r.computation = %(computation)s AND r.id BETWEEN x.low AND x.high
    OFFSET 0
) AS s
