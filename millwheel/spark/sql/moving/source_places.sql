SELECT
    l.computation, g.source, l.position, coalesce((l.acked -> g.id::text ->> 0)::bigint, 0), l.low_watermark,
    k.id, k.sequencer
FROM {latest_commits} AS l
JOIN {log} AS g ON g.interval_id = l.interval_id AND g.source IS NOT NULL
JOIN {key_interval} AS k ON k.id = l.interval_id
ORDER BY l.computation, l.slot_from
