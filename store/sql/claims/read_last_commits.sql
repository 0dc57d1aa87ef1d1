-- The last commit of each interval, with its bucket table.
SELECT k.id, c.n, c.bucket_table, c.stamp, c.input_watermark, c.low_watermark,
       c.acked::text, c.position::text, c.counters::text,
       c.table_rows, f.through
FROM {key_interval} AS k
JOIN {fold} AS f ON f.interval_id = k.id
CROSS JOIN LATERAL (
    SELECT r.*, r.tableoid::regclass::oid AS bucket_oid, cl.relname AS bucket_table
    FROM {commit_record} AS r
    JOIN pg_catalog.pg_class AS cl ON cl.oid = r.tableoid
    WHERE r.interval_id = k.id
    ORDER BY r.n DESC
    LIMIT 1
) AS c
WHERE k.id = ANY(%(interval_ids)s::bigint[])
