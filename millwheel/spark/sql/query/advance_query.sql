UPDATE {spark_query}
SET
    id = %(id)s, batch = %(batch)s, counters = %(counters)s, table_rows = %(table_rows)s,
    output_watermark = low_watermark, low_watermark = greatest(low_watermark, %(low)s), changed_at = now()
WHERE number = %(number)s AND batch = %(before)s AND ended_at IS NULL
