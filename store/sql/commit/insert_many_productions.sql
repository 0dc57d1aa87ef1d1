-- As insert_productions.sql, for a large bundle.
INSERT INTO {table} (log, seq, stream, receiver, slot, key, value, version, ts, hold, stamp)
SELECT *
FROM unnest(
    %(log)s::bigint[], %(seq)s::bigint[], %(stream)s::smallint[], %(receiver)s::smallint[],
    %(slot)s::integer[], %(key)s::text[], %(value)s::text[], %(version)s::smallint[],
    %(ts)s::bigint[], %(hold)s::bigint[], %(stamp)s::bigint[]
)
