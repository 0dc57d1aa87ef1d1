-- Which of these ids (told "maybe" by a Bloom filter) are really in one bucket.
SELECT x.slot, x.id
FROM unnest(%(slot)s::integer[], %(id)s::uuid[]) AS x (slot, id)
WHERE EXISTS (
    SELECT FROM {table} AS s
    WHERE s.slot = x.slot AND s.computation = %(computation)s AND s.id = x.id
)
