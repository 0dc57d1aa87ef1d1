-- The lowest stored floor, and the stored GC watermark: no log, owned or not, sends a production from
-- before the floor again.
SELECT
    (
        SELECT min(c.floor)
        FROM {key_interval} AS k
        CROSS JOIN LATERAL (
            SELECT r.floor FROM {commit_record} AS r
            WHERE r.interval_id = k.id ORDER BY r.n DESC LIMIT 1
        ) AS c
    ) AS floor,
    (SELECT gc_watermark FROM {pipeline}) AS gc_watermark
