-- Begins every commit: appends one commit_record for each interval. It fails unless this worker still owns
-- the interval (sequencer) and the commit follows the last one: n - 1 is the newest in its bucket. (If n
-- exists already, in that bucket n - 1 is not the newest, and in the current one the key is taken.) A check
-- without a result yields NULL, and NULL in a NOT NULL column raises an error. The server itself must
-- abort, because COMMIT is already on the wire, or follows by itself (I3). The stamp is NULL in another server
-- process than the lane's, which a connection pooler has given it.
INSERT INTO {current} (
    interval_id, n, sequencer, stamp, input_watermark, low_watermark, floor, acked, position,
    counters, table_rows
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
    CASE WHEN pg_backend_pid() = %(backend)s::integer THEN x.stamp END,
    x.input_watermark,
    x.low_watermark,
    x.floor,
    x.acked,
    x.position,
    x.counters,
    x.table_rows
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (
    interval_id bigint, n bigint, sequencer bigint, stamp bigint, input_watermark bigint,
    low_watermark bigint, floor bigint, acked jsonb, position jsonb, counters jsonb,
    table_rows jsonb
)
RETURNING 1
