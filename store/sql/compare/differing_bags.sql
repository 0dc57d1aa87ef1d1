-- The first rows without a key that one side has more often, with how much more often.
SELECT
    '', CASE WHEN r.in_a > r.in_b THEN 'only in a' ELSE 'only in b' END, ARRAY[]::text[],
    CASE WHEN r.in_a > r.in_b THEN {shown} END, CASE WHEN r.in_a < r.in_b THEN {shown} END, ARRAY[]::boolean[],
    abs(r.in_a - r.in_b)
FROM ({bags}) AS r
WHERE r.in_a <> r.in_b AND NOT {left_out}
ORDER BY {names}
LIMIT %(most)s
