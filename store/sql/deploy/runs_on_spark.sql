-- The checkpoint of the query that runs the pipeline on Spark, the operator of each computation, and whether it has
-- nothing that would be lost: no batch, and no state of the engine to begin with.
SELECT checkpoint, levels, batch < 0 AND begins_with IS NULL FROM {spark_query} WHERE ended_at IS NULL
