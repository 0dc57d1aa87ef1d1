-- The partitions of an injector with their promised watermarks, without the discovery of partitions.
SELECT
    k.id, k.slot_from, k.sequencer, g.source, c.low_watermark, c.position::text
FROM {key_interval} AS k
JOIN {key_interval} AS d ON d.computation = k.computation AND d.id = %(discovery)s
JOIN {log} AS g ON g.interval_id = k.id AND g.source IS NOT NULL
CROSS JOIN LATERAL (
    SELECT r.low_watermark, r.position
    FROM {commit_record} AS r WHERE r.interval_id = k.id ORDER BY r.n DESC LIMIT 1
) AS c
WHERE k.id <> d.id
ORDER BY k.slot_from
