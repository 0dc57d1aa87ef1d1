-- The checkpoint of the query that runs the pipeline on Spark.
SELECT checkpoint FROM {spark_query} WHERE ended_at IS NULL
