-- Opens every commit: appends one commit_record per interval, and fails unless this worker
-- still owns the interval (sequencer) and the commit follows the last one (n - 1 is the newest
-- in its bucket: where n exists already, in whichever bucket, it is not or the key is taken).
-- A check that finds nothing yields NULL, and NULL into a NOT NULL column raises: in
-- pipeline mode COMMIT is already on the wire, so the server itself must abort (design, I3).
INSERT INTO {current} (
    interval_id, n, sequencer, stamp, input_watermark, low_watermark, floor, acked, position,
    counters, percentiles
)
SELECT
    x.interval_id,
    (
        SELECT l.n + 1
        FROM (
            SELECT p.n FROM {previous} AS p
            WHERE p.interval_id = x.interval_id ORDER BY p.n DESC LIMIT 1
        ) AS l
        WHERE l.n = x.n - 1
    ),
    (
        SELECT k.sequencer FROM {key_interval} AS k
        WHERE k.id = x.interval_id AND k.sequencer = x.sequencer
        FOR SHARE
    ),
    %(stamp)s,
    x.input_watermark,
    x.low_watermark,
    x.floor,
    x.acked::jsonb,
    x.position::jsonb,
    x.counters::jsonb,
    x.percentiles::jsonb
FROM unnest(
    %(interval_id)s::bigint[], %(n)s::bigint[], %(sequencer)s::bigint[],
    %(input_watermark)s::bigint[], %(low_watermark)s::bigint[], %(floor)s::bigint[],
    %(acked)s::text[], %(position)s::text[], %(counters)s::text[], %(percentiles)s::text[]
) AS x (
    interval_id, n, sequencer, input_watermark, low_watermark, floor, acked, position, counters,
    percentiles
)
