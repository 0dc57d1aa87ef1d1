-- The low watermark of a pipeline that Spark runs.
SELECT output_watermark FROM {spark_query} WHERE ended_at IS NULL
