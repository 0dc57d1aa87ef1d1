CREATE VIEW {spark_queries} AS
SELECT
    q.id, q.checkpoint, q.batch, {micros_to_time}(q.low_watermark) AS low_watermark, q.counters,
    q.began_at, q.changed_at, q.ended_at
FROM {spark_query} AS q;
COMMENT ON VIEW {spark_queries} IS 'The query that runs the pipeline on Spark (millwheel spark run), and those before it';
COMMENT ON COLUMN {spark_queries}.id IS 'Spark''s id of the query';
COMMENT ON COLUMN {spark_queries}.checkpoint IS 'directory in which Spark keeps its state';
COMMENT ON COLUMN {spark_queries}.batch IS 'last batch in the tables; -1: none';
COMMENT ON COLUMN {spark_queries}.low_watermark IS 'promised by the sources when that batch was cut';
COMMENT ON COLUMN {spark_queries}.counters IS 'totals, by computation and counter';
COMMENT ON COLUMN {spark_queries}.began_at IS 'when its first run began';
COMMENT ON COLUMN {spark_queries}.changed_at IS 'when that batch was done';
COMMENT ON COLUMN {spark_queries}.ended_at IS 'when the pipeline was moved back to the engine; NULL: it runs on Spark'
