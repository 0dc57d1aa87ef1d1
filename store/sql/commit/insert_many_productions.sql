-- As insert_productions.sql, for a large bundle: the records of all rows are in one array a column, and a slice of each
-- becomes a row's.
INSERT INTO {table} (log, last, first, stream, receiver, version, stamp, slots, keys, values, ts, holds)
SELECT
    r.log, r.last,
    CASE WHEN NOT EXISTS (
        SELECT FROM {table} AS s WHERE s.log = r.log AND s.last >= r.first
    ) THEN r.first END,
    r.stream, r.receiver, r.version, r.stamp,
    (%(slots)s::integer[])[r.stop - r.count + 1 : r.stop],
    (%(keys)s::text[])[r.stop - r.count + 1 : r.stop],
    (%(values)s::text[])[r.stop - r.count + 1 : r.stop],
    (%(ts)s::bigint[])[r.stop - r.count + 1 : r.stop],
    (%(holds)s::bigint[])[r.stop - r.count + 1 : r.stop]
FROM unnest(
    %(log)s::bigint[], %(last)s::bigint[], %(first)s::bigint[], %(stream)s::smallint[],
    %(receiver)s::smallint[], %(version)s::smallint[], %(stamp)s::bigint[], %(stop)s::integer[],
    %(count)s::integer[]
) AS r (log, last, first, stream, receiver, version, stamp, stop, count)
