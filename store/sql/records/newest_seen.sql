-- The newest number of each log in a bucket, by one step down the index for each log.
WITH RECURSIVE newest AS (
    (
        SELECT r.log, r.last FROM {table} AS r
        WHERE r.computation = %(computation)s
        ORDER BY r.log DESC, r.last DESC
        LIMIT 1
    )
    UNION ALL
    SELECT s.log, s.last
    FROM newest AS n
    CROSS JOIN LATERAL (
        SELECT r.log, r.last FROM {table} AS r
        WHERE r.computation = %(computation)s AND r.log < n.log
        ORDER BY r.log DESC, r.last DESC
        LIMIT 1
    ) AS s
)
SELECT n.log, n.last FROM newest AS n
