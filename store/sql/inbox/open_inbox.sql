-- A stream takes records from now on, into the log of this interval.
INSERT INTO {inbox} AS i (stream, interval_id, requires_id, remember)
SELECT s.id, %(interval_id)s, %(requires_id)s, %(remember)s FROM {stream} AS s WHERE s.name = %(stream)s
ON CONFLICT (stream) DO UPDATE SET
    interval_id = excluded.interval_id, requires_id = excluded.requires_id, remember = excluded.remember
RETURNING i.stream
