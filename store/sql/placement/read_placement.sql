-- Intervals with owners, logs and wanted owners, workers, and paused injectors. One statement, so one
-- snapshot; one row, because every worker reads it every second. Only the database's clock decides on
-- leases.
SELECT
    (extract(epoch FROM now()) * 1000000)::bigint,
    (
        SELECT coalesce(
            jsonb_agg(
                jsonb_build_array(
                    k.id, k.computation, k.slot_from, k.slot_to, k.sequencer, k.owner, k.wanted_by,
                    k.owner IS NOT NULL AND NOT EXISTS (
                        SELECT FROM {worker} AS w
                        WHERE w.id = k.owner AND NOT w.stopped AND w.lease_until > now()
                    ),
                    k.generation, c.name, c.kind,
                    65536 / coalesce(
                        (g.code #>> ARRAY['graph', 'nodes', c.name, 'broadcast_cells'])::integer, 65536
                    ),
                    k.pinned, k.split_at, k.merge_with,
                    (
                        SELECT coalesce(jsonb_agg(l.id ORDER BY l.id), '[]') FROM {log} AS l
                        WHERE l.interval_id = k.id AND NOT l.retired
                    )
                )
                ORDER BY k.computation, k.slot_from
            ),
            '[]'
        )
        FROM {key_interval} AS k
        JOIN {computation} AS c ON c.id = k.computation
        CROSS JOIN (SELECT code FROM {generation} ORDER BY number DESC LIMIT 1) AS g
    )::text,
    (
        SELECT coalesce(
            jsonb_agg(
                jsonb_build_array(
                    w.id, w.address, w.host, w.pid, w.pid_started, w.backends,
                    greatest(0, extract(epoch FROM w.lease_until - now()))::float8, w.load,
                    w.generation
                )
                ORDER BY w.started_at, w.id
            ),
            '[]'
        )
        FROM {worker} AS w
        WHERE NOT w.stopped
    )::text,
    (
        SELECT coalesce(jsonb_agg(c.id ORDER BY c.id), '[]') FROM {computation} AS c
        WHERE c.removed_at IS NOT NULL
    )::text,
    (SELECT coalesce(jsonb_agg(c.id), '[]') FROM {computation} AS c WHERE c.paused)::text
