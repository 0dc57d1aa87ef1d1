-- Appends the ids, in no order, of records with effects that this commit makes durable: those of users and of weak
-- productions. There is no ON CONFLICT: an id that exists already means that dedup has failed, and the commit must fail
-- with it (I2).
INSERT INTO {table} (slot, computation, id)
SELECT x.slot, x.computation, x.id
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (slot integer, computation smallint, id uuid)
