-- Changes a query that has done nothing yet.
UPDATE {spark_query} SET checkpoint = %(checkpoint)s, levels = %(levels)s::jsonb WHERE ended_at IS NULL
