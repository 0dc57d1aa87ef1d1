-- Whether anything that a pipeline has read is not finished, the oldest heartbeat of its live workers, and the time.
SELECT
    EXISTS (SELECT FROM {pending_productions})
        OR EXISTS (SELECT FROM {sinks} AS s WHERE s.open IS NOT NULL OR s.waiting > 0)
        OR EXISTS (SELECT FROM {source_partitions} AS p WHERE p.pending > 0),
    (SELECT min(w.heartbeat_at) FROM {worker} AS w WHERE NOT w.stopped AND w.lease_until > clock_timestamp()),
    clock_timestamp()
