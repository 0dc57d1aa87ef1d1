-- As insert_timers.sql, for a large bundle. The least number stands for NULL: a timer that has fired or was cancelled.
INSERT INTO {table} (interval_id, n, computation, slot, key, kind, tag, due, hold, set_at)
SELECT
    x.interval_id, x.n, x.computation, x.slot, x.key, x.kind, x.tag,
    nullif(x.due, -9223372036854775808), nullif(x.hold, -9223372036854775808), %(set_at)s::bigint
FROM unnest(
    %(interval_id)s::bigint[], %(n)s::bigint[], %(computation)s::smallint[], %(slot)s::integer[],
    %(key)s::text[], %(kind)s::text[], %(tag)s::text[], %(due)s::bigint[], %(hold)s::bigint[]
) AS x (interval_id, n, computation, slot, key, kind, tag, due, hold)
