-- The nodes that send records to a computation, in the order of the graph.
SELECT s.name, s.kind
FROM {computation} AS c
CROSS JOIN LATERAL jsonb_array_elements_text(c.upstream) AS u (name)
JOIN {computation} AS s ON s.name = u.name
WHERE c.id = %(computation_id)s
ORDER BY s.id
