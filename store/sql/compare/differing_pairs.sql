-- The first rows of a part that are not equal. A window function for all parts at once would sort all of their rows.
SELECT p.kind, p.key, p.of_a, p.of_b, p.marks, 1::bigint
FROM ({pairs}) AS p
WHERE p.kind IN ('only in a', 'only in b', 'differs') AND p.part = %(part)s
ORDER BY {order}
LIMIT %(most)s
