CREATE VIEW {dead_letters} AS
SELECT
    d.id, c.name AS computation, d.stream, d.key::jsonb AS key, d.value, {micros_to_time}(d.ts) AS "timestamp",
    d.place, d.error, d.attempts, {micros_to_time}(d.stamp) AS given_up_at, d.record_id,
    d.parked
FROM {dead_letter} AS d
JOIN {computation} AS c ON c.id = d.computation;
COMMENT ON VIEW {dead_letters} IS 'Records, rows and timers that the engine gave up on, with the reason';
COMMENT ON COLUMN {dead_letters}.id IS 'number for millwheel dead-letters show';
COMMENT ON COLUMN {dead_letters}.computation IS 'computation where it failed';
COMMENT ON COLUMN {dead_letters}.stream IS 'its stream, or timer';
COMMENT ON COLUMN {dead_letters}.key IS 'its key as JSON';
COMMENT ON COLUMN {dead_letters}.value IS 'its value as JSON, or the raw text of a bad row';
COMMENT ON COLUMN {dead_letters}."timestamp" IS 'event time';
COMMENT ON COLUMN {dead_letters}.place IS 'its origin: file and line, or log and number';
COMMENT ON COLUMN {dead_letters}.error IS 'the error';
COMMENT ON COLUMN {dead_letters}.attempts IS 'number of attempts';
COMMENT ON COLUMN {dead_letters}.given_up_at IS 'when the engine gave up';
COMMENT ON COLUMN {dead_letters}.record_id IS 'id that deduplicates it';
COMMENT ON COLUMN {dead_letters}.parked IS 'failed: it stops its key; waiting: it waits in its parked key; null: its key goes on'
