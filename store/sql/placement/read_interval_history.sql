-- The last commit of intervals before a split or merge, and the number of their last folded commit.
SELECT k.id, k.computation, k.slot_from, k.slot_to, p.kind, c.n, f.through, c.stamp,
       c.input_watermark, c.low_watermark, c.floor, c.acked::text, c.position::text, c.counters::text,
       65536 / coalesce((g.code #>> ARRAY['graph', 'nodes', p.name, 'broadcast_cells'])::integer, 65536)
FROM {key_interval} AS k
JOIN {computation} AS p ON p.id = k.computation
JOIN {fold} AS f ON f.interval_id = k.id
CROSS JOIN (SELECT code FROM {generation} ORDER BY number DESC LIMIT 1) AS g
CROSS JOIN LATERAL (
    SELECT * FROM {commit_record} AS r WHERE r.interval_id = k.id ORDER BY r.n DESC LIMIT 1
) AS c
WHERE k.id = ANY(%(interval_ids)s::bigint[])
