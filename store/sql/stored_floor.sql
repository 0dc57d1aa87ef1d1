-- What is durable: no log, owned or not, sends anything produced before the least floor;
-- and how many commits still stand unfolded in, or end with, the tables of one bucket.
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
