-- Takes intervals from workers of older code, who do not know all that is sent to them: these
-- keep them until a worker of this generation is there to have them. Locked in order of id, as
-- their owners' commits do. What was cut meanwhile is not seen: to be run until it finds nothing.
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
