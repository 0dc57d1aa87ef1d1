-- How many rows of each kind there are, and from when to when those that are not equal are.
SELECT
    sum(least(g.in_a, g.in_b)) FILTER (WHERE NOT g.is_out), sum(g.in_a - least(g.in_a, g.in_b)) FILTER (WHERE NOT g.is_out),
    sum(g.in_b - least(g.in_a, g.in_b)) FILTER (WHERE NOT g.is_out), sum(g.in_a) FILTER (WHERE g.is_out),
    sum(g.in_b) FILTER (WHERE g.is_out), min(g.time) FILTER (WHERE g.in_a <> g.in_b AND NOT g.is_out),
    max(g.time) FILTER (WHERE g.in_a <> g.in_b AND NOT g.is_out)
FROM (SELECT r.*, {left_out} AS is_out, {time} AS time FROM ({bags}) AS r) AS g
