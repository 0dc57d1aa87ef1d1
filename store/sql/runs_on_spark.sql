-- The checkpoint of the query that runs the pipeline on Spark, and the operator of each computation.
SELECT checkpoint, levels FROM {spark_query} WHERE ended_at IS NULL
