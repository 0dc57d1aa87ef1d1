CREATE VIEW {dead_letters} AS
SELECT
    d.id, c.name AS computation, d.stream, d.key::jsonb AS key, d.value, {micros_to_time}(d.ts) AS "timestamp",
    d.place, d.error, d.attempts, {micros_to_time}(d.stamp) AS given_up_at, d.record_id
FROM {dead_letter} AS d
JOIN {computation} AS c ON c.id = d.computation;
COMMENT ON VIEW {dead_letters} IS 'Records, rows and timers given up on, with the reason';
COMMENT ON COLUMN {dead_letters}.id IS 'number for millwheel dead-letters show';
COMMENT ON COLUMN {dead_letters}.computation IS 'where it failed';
COMMENT ON COLUMN {dead_letters}.stream IS 'stream it came by, or timer';
COMMENT ON COLUMN {dead_letters}.key IS 'its key as JSON';
COMMENT ON COLUMN {dead_letters}.value IS 'its value as JSON, or the raw text of a bad row';
COMMENT ON COLUMN {dead_letters}."timestamp" IS 'event time';
COMMENT ON COLUMN {dead_letters}.place IS 'where it came from: file and line, or log and number';
COMMENT ON COLUMN {dead_letters}.error IS 'what went wrong';
COMMENT ON COLUMN {dead_letters}.attempts IS 'how often it was tried';
COMMENT ON COLUMN {dead_letters}.given_up_at IS 'when';
COMMENT ON COLUMN {dead_letters}.record_id IS 'the id it was deduplicated by'
