-- The runs of seen numbers that meet some stretches of logs. No run is longer than 4,096 numbers, so none that begins
-- further away can reach a stretch.
SELECT s.log, s.first, s.last, s.present
FROM unnest(%(log)s::bigint[], %(low)s::bigint[], %(high)s::bigint[]) AS x (log, low, high)
CROSS JOIN LATERAL (
    SELECT r.log, r.first, r.last, r.present FROM {table} AS r
    WHERE r.computation = %(computation)s AND r.log = x.log
      AND r.last >= x.low AND r.last < x.high + 4096 AND r.first <= x.high
    OFFSET 0
) AS s
