-- The first commit of the chain of a new part.
INSERT INTO {commits} (
    interval_id, n, sequencer, stamp, input_watermark, low_watermark, floor, acked, position,
    counters
)
VALUES (
    %(interval_id)s, 0, %(sequencer)s, %(stamp)s, %(input_watermark)s, %(low_watermark)s,
    %(floor)s, %(acked)s::jsonb, %(position)s::jsonb, %(counters)s::jsonb
)
