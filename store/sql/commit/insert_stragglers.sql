-- Appends weak productions that are not acknowledged yet, in the commit that notes their input records as
-- seen (paper 6.1.3, straggler checkpoints).
INSERT INTO {table} (
    log, seq, id, origin, place, stream, receiver, slot, key, value, version, ts, hold, stamp
)
SELECT
    x.log, x.seq, x.id, x.origin, x.place, x.stream, x.receiver, x.slot, x.key, x.value, x.version,
    x.ts, x.hold, x.stamp
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (
    log bigint, seq bigint, id uuid, origin bigint, place bigint, stream smallint,
    receiver smallint, slot integer, key text, value text, version smallint, ts bigint,
    hold bigint, stamp bigint
)
