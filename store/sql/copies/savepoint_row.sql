-- Figures of a savepoint: its moment, until when it is kept, and where the pipeline was.
SELECT p.copied_at, p.keep_until, coalesce(p.keep_until <= now(), false) AS is_expired, p.restore_point,
       (SELECT max(g.number) FROM {generation} AS g) AS generation,
       (SELECT min(w.low_watermark)::text FROM {watermarks} AS w) AS low_watermark
FROM {pipeline} AS p
