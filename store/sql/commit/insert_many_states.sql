-- As insert_states.sql, for a large bundle.
INSERT INTO {table} (interval_id, n, computation, slot, key, entry, value, version)
SELECT *
FROM unnest(
    %(interval_id)s::bigint[], %(n)s::bigint[], %(computation)s::smallint[], %(slot)s::integer[],
    %(key)s::text[], %(entry)s::text[], %(value)s::jsonb[], %(version)s::smallint[]
)
