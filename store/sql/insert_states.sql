-- Appends changed state entries of a small bundle.
INSERT INTO {table} (interval_id, n, computation, slot, key, entry, value, version)
SELECT x.interval_id, x.n, x.computation, x.slot, x.key, x.entry, x.value::jsonb, x.version
FROM unnest(
    %(interval_id)s::bigint[], %(n)s::bigint[], %(computation)s::smallint[], %(slot)s::integer[],
    %(key)s::text[], %(entry)s::text[], %(value)s::text[], %(version)s::smallint[]
) AS x (interval_id, n, computation, slot, key, entry, value, version)
