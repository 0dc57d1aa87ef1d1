CREATE VIEW {numbered_rows} AS
SELECT t.key AS table_name, l.interval_id AS sender, t.value::bigint AS rows, false AS ended
FROM {latest_commits} AS l
CROSS JOIN LATERAL jsonb_each_text(l.table_rows) AS t
UNION ALL
SELECT e.table_name, e.sender, e.rows, true
FROM {ended_sender} AS e
UNION ALL
SELECT t.key, q.sender, t.value::bigint, q.ended_at IS NOT NULL
FROM {spark_query} AS q
CROSS JOIN LATERAL jsonb_each_text(q.table_rows) AS t;
COMMENT ON VIEW {numbered_rows} IS 'How far numbered tables are written: of each sender, the rows from 0 up to this number';
COMMENT ON COLUMN {numbered_rows}.table_name IS 'name of the numbered table';
COMMENT ON COLUMN {numbered_rows}.sender IS 'sender of its rows: key_interval.id, perhaps of an interval that is gone, or spark_query.sender';
COMMENT ON COLUMN {numbered_rows}.rows IS 'rows that it has written: their sequence is 0 and up, without gaps, in the order of their commits';
COMMENT ON COLUMN {numbered_rows}.ended IS 'it writes no more: it was merged or removed'
