-- How many rows of each kind there are, and from when to when.
SELECT p.part, p.kind, count(p.in_a), count(p.in_b), min(p.time)::text, max(p.time)::text
FROM ({pairs}) AS p
GROUP BY p.part, p.kind
