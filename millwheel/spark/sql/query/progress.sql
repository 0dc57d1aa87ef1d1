SELECT number, id::text, checkpoint, levels, begins_with, sender, batch, counters, table_rows
FROM {spark_query} WHERE ended_at IS NULL
