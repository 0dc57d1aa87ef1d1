-- Takes intervals from workers of older code, which do not know all their input: they keep them until a
-- worker of this generation can claim them. The rows are locked in order of id, as commits of their owners
-- do. It does not see intervals that a concurrent split or merge makes, so it is repeated until it finds
-- none.
WITH outgrown AS MATERIALIZED (
    SELECT k.id
    FROM {key_interval} AS k
    JOIN {computation} AS c ON c.id = k.computation
    WHERE c.name = ANY(%(names)s::text[]) AND k.generation < %(generation)s
    ORDER BY k.id
    FOR NO KEY UPDATE OF k
)
UPDATE {key_interval} AS k SET generation = %(generation)s
FROM outgrown AS o
WHERE o.id = k.id
