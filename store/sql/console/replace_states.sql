-- Replaces values by the same ones in the form of another version, where nothing has been written since they
-- were read. Rows that a fold holds are left out, so that the two never wait for each other.
WITH given AS (
    SELECT * FROM unnest(
        %(slots)s::integer[], %(computations)s::smallint[], %(keys)s::text[], %(entries)s::text[],
        %(read)s::text[], %(values)s::text[], %(versions)s::smallint[]
    ) AS g (slot, computation, key, entry, read, value, version)
), held AS MATERIALIZED (
    SELECT g.slot, g.computation, g.key, g.entry, g.value, g.version
    FROM given AS g
    JOIN {state} AS s
        ON s.slot = g.slot AND s.computation = g.computation AND s.key = g.key AND s.entry = g.entry
    WHERE s.xmin::text = g.read
    FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE {state} AS s SET value = h.value::jsonb, version = h.version
FROM held AS h
WHERE s.slot = h.slot AND s.computation = h.computation AND s.key = h.key AND s.entry = h.entry
