-- As insert_states.sql, for a large bundle: the entries of all rows are in one array a column, and a slice of each becomes
-- a row's. A missing value is a removed entry.
INSERT INTO {table} (interval_id, n, computation, version, slots, keys, entries, values)
SELECT
    r.interval_id, r.n, r.computation, r.version,
    (%(slots)s::integer[])[r.stop - r.count + 1 : r.stop],
    (%(keys)s::text[])[r.stop - r.count + 1 : r.stop],
    (%(entries)s::text[])[r.stop - r.count + 1 : r.stop],
    (%(values)s::jsonb[])[r.stop - r.count + 1 : r.stop]
FROM unnest(
    %(interval_id)s::bigint[], %(n)s::bigint[], %(computation)s::smallint[],
    %(version)s::smallint[], %(stop)s::integer[], %(count)s::integer[]
) AS r (interval_id, n, computation, version, stop, count)
