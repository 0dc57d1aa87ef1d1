-- Rows without a key, the equal ones together: how many of them each side has.
SELECT {names}, count(*) FILTER (WHERE u.of_a) AS in_a, count(*) FILTER (WHERE NOT u.of_a) AS in_b
FROM (
    SELECT true AS of_a, {columns} FROM {a} AS t
    UNION ALL
    SELECT false AS of_a, {columns} FROM {b} AS t
) AS u
GROUP BY {names}
