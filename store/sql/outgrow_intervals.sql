-- Takes intervals from workers of older code, who do not know all that is sent to them: these
-- keep them until a worker of this generation is there to have them.
UPDATE {key_interval} AS k SET generation = %(generation)s
FROM {computation} AS c
WHERE c.id = k.computation AND c.name = ANY(%(names)s::text[])
