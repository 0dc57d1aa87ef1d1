UPDATE {spark_query} SET ended_at = now()
WHERE number = %(number)s AND batch = %(batch)s AND ended_at IS NULL
