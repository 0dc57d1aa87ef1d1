-- The first rows of each part that are not equal.
SELECT d.part, d.kind, d.key, d.of_a, d.of_b, d.marks, 1::bigint
FROM (
    SELECT p.*, row_number() OVER (PARTITION BY p.part ORDER BY {order}) AS number
    FROM ({pairs}) AS p
    WHERE p.kind IN ('only in a', 'only in b', 'differs') AND p.part = ANY(%(parts)s::text[])
) AS d
WHERE d.number <= %(most)s
ORDER BY d.part, d.number
