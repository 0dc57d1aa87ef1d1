-- Appends timers set, fired and cancelled (due is NULL) by a bundle.
INSERT INTO {table} (interval_id, n, computation, slot, key, kind, tag, due, hold, set_at)
SELECT x.*, %(set_at)s
FROM unnest(
    %(interval_id)s::bigint[], %(n)s::bigint[], %(computation)s::smallint[], %(slot)s::integer[],
    %(key)s::text[], %(kind)s::text[], %(tag)s::text[], %(due)s::bigint[], %(hold)s::bigint[]
) AS x
