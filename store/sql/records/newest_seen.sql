-- The newest id of each log in a bucket, by one step down the index for each log. Ids of rows and strong
-- productions are (log, number), and sort before all others.
WITH RECURSIVE newest AS (
    (
        SELECT r.id FROM {table} AS r
        WHERE r.computation = %(computation)s AND r.id < '80000000-0000-0000-0000-000000000000'
        ORDER BY r.id DESC
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT r.id FROM {table} AS r
        WHERE r.computation = %(computation)s
          AND r.id < (left(n.id::text, 18) || '-0000-000000000000')::uuid
        ORDER BY r.id DESC
        LIMIT 1
    )
    FROM newest AS n
    WHERE n.id IS NOT NULL
)
SELECT n.id FROM newest AS n WHERE n.id IS NOT NULL
