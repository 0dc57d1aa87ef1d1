-- Computations with parked keys.
SELECT DISTINCT c.name
FROM {dead_letter} AS d
JOIN {computation} AS c ON c.id = d.computation
WHERE d.parked IS NOT NULL
