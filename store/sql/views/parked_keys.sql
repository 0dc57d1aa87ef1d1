CREATE VIEW {parked_keys} AS
SELECT
    c.name AS computation, d.key::jsonb AS key, {micros_to_time}(min(d.stamp)) AS since,
    count(*) FILTER (WHERE d.parked = 'waiting') AS waiting, sum(octet_length(d.value))::bigint AS bytes,
    {micros_to_time}(min(d.ts)) AS oldest, min(d.id) FILTER (WHERE d.parked = 'failed') AS failed,
    max(d.error) FILTER (WHERE d.parked = 'failed') AS error, d.slot
FROM {dead_letter} AS d
JOIN {computation} AS c ON c.id = d.computation
WHERE d.parked IS NOT NULL
GROUP BY c.name, d.key, d.slot;
COMMENT ON VIEW {parked_keys} IS 'Keys that stand still since a record failed, with the records and timers that wait in them (on_error="park")';
COMMENT ON COLUMN {parked_keys}.computation IS 'computation where it failed';
COMMENT ON COLUMN {parked_keys}.key IS 'the key as JSON';
COMMENT ON COLUMN {parked_keys}.since IS 'when the oldest of them was stored';
COMMENT ON COLUMN {parked_keys}.waiting IS 'records that wait behind it';
COMMENT ON COLUMN {parked_keys}.bytes IS 'size of the values';
COMMENT ON COLUMN {parked_keys}.oldest IS 'least event time';
COMMENT ON COLUMN {parked_keys}.failed IS 'number of the dead letter that stops it: retry or discard it; null: waiting records are being processed';
COMMENT ON COLUMN {parked_keys}.error IS 'its error';
COMMENT ON COLUMN {parked_keys}.slot IS 'hash of the key, 0 to 65535'
