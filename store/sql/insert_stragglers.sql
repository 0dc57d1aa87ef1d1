-- Appends weak productions that have not arrived, with the records they came of noted as seen in
-- the same commit (paper 6.1.3, straggler checkpoints).
INSERT INTO {table} (
    log, seq, id, origin, place, stream, receiver, slot, key, value, version, ts, hold, stamp
)
SELECT *
FROM unnest(
    %(log)s::bigint[], %(seq)s::bigint[], %(id)s::uuid[], %(origin)s::bigint[],
    %(place)s::bigint[], %(stream)s::smallint[], %(receiver)s::smallint[], %(slot)s::integer[],
    %(key)s::text[], %(value)s::text[], %(version)s::smallint[], %(ts)s::bigint[],
    %(hold)s::bigint[], %(stamp)s::bigint[]
)
