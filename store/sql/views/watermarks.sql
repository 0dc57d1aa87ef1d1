CREATE VIEW {watermarks} AS
SELECT
    l.computation, l.kind,
    {micros_to_time}(min(input_watermark)) AS input_watermark,
    {micros_to_time}(min(low_watermark)) AS low_watermark,
    count(*)::integer AS intervals,
    {micros_to_time}(max(stamp)) AS last_commit
FROM {latest_commits} AS l
GROUP BY l.computation, l.kind;
COMMENT ON VIEW {watermarks} IS 'Stored low watermarks, by computation';
COMMENT ON COLUMN {watermarks}.computation IS 'name of the computation';
COMMENT ON COLUMN {watermarks}.kind IS 'injector, computation or relay';
COMMENT ON COLUMN {watermarks}.input_watermark IS 'timers fire by it; no on-time record arrives with an older timestamp';
COMMENT ON COLUMN {watermarks}.low_watermark IS 'promised to the readers of its streams';
COMMENT ON COLUMN {watermarks}.intervals IS 'key intervals of the computation';
COMMENT ON COLUMN {watermarks}.last_commit IS 'logical time of the last commit'
