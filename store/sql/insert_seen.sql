-- Appends the ids whose effects this commit makes durable. No ON CONFLICT: an id that is
-- already there means that dedup failed, and the commit must fail with it (I2).
INSERT INTO {table} (slot, computation, id)
SELECT * FROM unnest(%(slot)s::integer[], %(computation)s::smallint[], %(id)s::uuid[])
