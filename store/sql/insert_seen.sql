-- Appends the ids whose effects this commit makes durable. No ON CONFLICT: an id that is
-- already there means that dedup failed, and the commit must fail with it (I2).
INSERT INTO {table} (slot, computation, id)
SELECT x.slot, x.computation, x.id
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (slot integer, computation smallint, id uuid)
