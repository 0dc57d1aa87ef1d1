CREATE VIEW {workers} AS
SELECT
    w.id, w.host, w.pid, w.address, w.started_at, w.heartbeat_at, w.lease_until, w.stopped,
    count(k.id)::integer AS intervals, w.load, w.generation
FROM {worker} AS w
LEFT JOIN {key_interval} AS k ON k.owner = w.id
GROUP BY w.id;
COMMENT ON VIEW {workers} IS 'Worker processes, their leases and intervals';
COMMENT ON COLUMN {workers}.id IS 'worker.id';
COMMENT ON COLUMN {workers}.host IS 'machine, boot and process namespace';
COMMENT ON COLUMN {workers}.pid IS 'process id on that machine';
COMMENT ON COLUMN {workers}.address IS 'its address for other workers: host:port';
COMMENT ON COLUMN {workers}.started_at IS 'when it registered';
COMMENT ON COLUMN {workers}.heartbeat_at IS 'when it last renewed its lease';
COMMENT ON COLUMN {workers}.lease_until IS 'end of its lease, by the database''s clock';
COMMENT ON COLUMN {workers}.stopped IS 'shut down cleanly';
COMMENT ON COLUMN {workers}.intervals IS 'key intervals it owns';
COMMENT ON COLUMN {workers}.load IS 'load that it reported last';
COMMENT ON COLUMN {workers}.generation IS 'generation of its code'
