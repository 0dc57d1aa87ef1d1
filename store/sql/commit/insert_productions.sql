-- Appends the productions of a small bundle: they are durable before they are sent (paper 6.1.2). A row of columns for
-- records with consecutive numbers, which ascend in each log: a row that begins before the end of a stored one gets no
-- first number, which is refused, and the commit with it.
INSERT INTO {table} (log, last, first, stream, receiver, version, stamp, slots, keys, values, ts, holds)
SELECT
    x.log, x.last,
    CASE WHEN NOT EXISTS (
        SELECT FROM {table} AS s WHERE s.log = x.log AND s.last >= x.first
    ) THEN x.first END,
    x.stream, x.receiver, x.version, x.stamp, x.slots, x.keys, x.values, x.ts, x.holds
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (
    log bigint, last bigint, first bigint, stream smallint, receiver smallint, version smallint, stamp bigint,
    slots integer[], keys text[], values text[], ts bigint[], holds bigint[]
)
