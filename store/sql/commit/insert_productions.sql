-- Appends the productions of a small bundle: they are durable before they are sent (paper 6.1.2).
INSERT INTO {table} (log, seq, stream, receiver, slot, key, value, version, ts, hold, stamp)
SELECT
    x.log, x.seq, x.stream, x.receiver, x.slot, x.key, x.value, x.version, x.ts, x.hold, x.stamp
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (
    log bigint, seq bigint, stream smallint, receiver smallint, slot integer, key text, value text,
    version smallint, ts bigint, hold bigint, stamp bigint
)
