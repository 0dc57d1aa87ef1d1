-- The commit that the chain of each new interval begins with: n = 0, and nothing is promised.
INSERT INTO {commits} (
    interval_id, n, sequencer, stamp, input_watermark, low_watermark, floor, acked, position, counters
)
SELECT
    k.id, 0, k.sequencer, %(stamp)s::bigint, %(low)s::bigint, %(low)s::bigint, %(stamp)s::bigint,
    '{{}}', NULL, '{{}}'
FROM {key_interval} AS k
WHERE k.id = ANY(%(ids)s::bigint[])
