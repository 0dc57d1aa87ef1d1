-- Stores the dead letters of a bundle, in the commit that acknowledges their records, in their order: those of a parked
-- key run in the order of their numbers. An unreadable row of a source has no seen id, so a row that is stored already
-- is not stored again.
INSERT INTO {dead_letter} (
    slot, computation, stream, record_id, key, value, ts, place, error, traceback, attempts, stamp, parked, watermark,
    hold, version
)
SELECT
    x.slot, x.computation, x.stream, x.record_id, x.key, x.value, x.ts, x.place, x.error,
    x.traceback, x.attempts, x.stamp, x.parked, x.watermark, x.hold, x.version
FROM ROWS FROM (jsonb_to_recordset(%(rows)s::jsonb) AS (
    slot integer, computation smallint, stream text, record_id uuid, key text, value text,
    ts bigint, place text, error text, traceback text, attempts integer, stamp bigint, parked text, watermark bigint,
    hold bigint, version smallint
)) WITH ORDINALITY AS x (
    slot, computation, stream, record_id, key, value, ts, place, error, traceback, attempts, stamp, parked, watermark,
    hold, version, number
)
WHERE x.key IS NOT NULL OR NOT EXISTS (
    SELECT FROM {dead_letter} AS kept WHERE kept.key IS NULL AND kept.record_id = x.record_id
)
ORDER BY x.number
