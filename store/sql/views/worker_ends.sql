CREATE VIEW {worker_ends} AS
SELECT
    e.id, e.at, e.worker, e.host, e.pid, e.kind, e.error, e.computation, e.item, e.key::jsonb AS key,
    e.partition
FROM {worker_end} AS e;
COMMENT ON VIEW {worker_ends} IS
    'Errors with which workers have ended or did not start, the newest 1,000; a killed process leaves none';
COMMENT ON COLUMN {worker_ends}.id IS 'increases with time';
COMMENT ON COLUMN {worker_ends}.at IS 'when it ended, by the database''s clock';
COMMENT ON COLUMN {worker_ends}.worker IS 'workers.id; without such a row if it has ended before it registered';
COMMENT ON COLUMN {worker_ends}.host IS 'machine, boot and process namespace';
COMMENT ON COLUMN {worker_ends}.pid IS 'process id on that machine';
COMMENT ON COLUMN {worker_ends}.kind IS 'class of the error';
COMMENT ON COLUMN {worker_ends}.error IS 'its text';
COMMENT ON COLUMN {worker_ends}.computation IS
    'the step of the record, timer or row at fault; null: no single one is';
COMMENT ON COLUMN {worker_ends}.item IS 'the record, timer or row at fault, as millwheel set-aside takes it';
COMMENT ON COLUMN {worker_ends}.key IS 'the key of the record or timer';
COMMENT ON COLUMN {worker_ends}.partition IS 'the partition of the row'
