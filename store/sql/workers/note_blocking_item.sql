-- Notes that a record or timer has blocked a worker for longer than the limit.
INSERT INTO {blocking_item} AS b (computation, slot, key, item, worker, at, error)
VALUES (
    %(computation)s, %(slot)s, %(key)s, %(item)s, %(worker)s, clock_timestamp(), %(error)s
)
ON CONFLICT (computation, slot, key, item) DO UPDATE
SET worker = excluded.worker, at = excluded.at, error = excluded.error
