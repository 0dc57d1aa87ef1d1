CREATE VIEW {aggregates} AS
SELECT a.name, a.follows, a.batch, a.changed_at,
    (
        SELECT coalesce(sum(n.rows - coalesce((a.read ->> n.sender::text)::bigint, 0)), 0)::bigint
        FROM {numbered_rows} AS n
        WHERE n.table_name = a.follows
    ) AS rows_behind
FROM {aggregate} AS a;
COMMENT ON VIEW {aggregates} IS 'Aggregates by Spark, and how far each is behind the table that it follows';
COMMENT ON COLUMN {aggregates}.name IS 'name of the aggregate';
COMMENT ON COLUMN {aggregates}.follows IS 'the numbered table whose new rows tell which groups have changed';
COMMENT ON COLUMN {aggregates}.batch IS 'number of the last batch';
COMMENT ON COLUMN {aggregates}.changed_at IS 'when the last batch was done';
COMMENT ON COLUMN {aggregates}.rows_behind IS 'rows of the followed table that it has not read'
