-- Notes that the pipeline runs on Spark.
INSERT INTO {spark_query} (
    checkpoint, levels, sender, batch, low_watermark, output_watermark, counters, table_rows, began_at,
    changed_at
)
VALUES (
    %(checkpoint)s, %(levels)s::jsonb, nextval(pg_get_serial_sequence(%(intervals)s, 'id')), -1, %(low)s,
    %(low)s, '{{}}', '{{}}', now(), now()
)
