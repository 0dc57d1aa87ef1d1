-- How many rows of each kind there are, and from when to when those that are not equal are.
SELECT
    coalesce(sum(g.same) FILTER (WHERE NOT g.is_out), 0)::bigint,
    coalesce(sum(g.in_a - g.same) FILTER (WHERE NOT g.is_out), 0)::bigint,
    coalesce(sum(g.in_b - g.same) FILTER (WHERE NOT g.is_out), 0)::bigint,
    coalesce(sum(g.in_a) FILTER (WHERE g.is_out), 0)::bigint,
    coalesce(sum(g.in_b) FILTER (WHERE g.is_out), 0)::bigint,
    (min(g.time) FILTER (WHERE g.in_a <> g.in_b AND NOT g.is_out))::text,
    (max(g.time) FILTER (WHERE g.in_a <> g.in_b AND NOT g.is_out))::text
FROM (SELECT r.*, least(r.in_a, r.in_b) AS same, {left_out} AS is_out, {time} AS time FROM ({bags}) AS r) AS g
