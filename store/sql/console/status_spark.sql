-- The query that runs the pipeline on Spark, if it runs there.
SELECT
    q.checkpoint, q.batch, q.low_watermark, extract(epoch FROM clock_timestamp() - q.changed_at)::float8 AS age, q.counters
FROM {spark_query} AS q
WHERE q.ended_at IS NULL
