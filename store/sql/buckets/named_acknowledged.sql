-- Whether no row comes again that may have its user-supplied id in a bucket that ends at `high`: in each
-- partition that is read by such ids, the earliest time at which a row past the stored position can have
-- been sent is not before that. (A partition without a commit of an owner has the stamp of its deploy.)
-- The position is JSON of `SourceProgress` (millwheel/core/source_progress.py).
SELECT NOT EXISTS (
    SELECT
    FROM {computation} AS c
    JOIN {key_interval} AS k ON k.computation = c.id
    CROSS JOIN LATERAL (
        SELECT r.stamp, r.position FROM {commit_record} AS r
        WHERE r.interval_id = k.id ORDER BY r.n DESC LIMIT 1
    ) AS l
    WHERE c.kind = 'injector'
      AND coalesce((l.position ->> 'sent_since')::bigint, l.stamp) < %(high)s::bigint
      AND EXISTS (
          SELECT
          FROM {computation} AS n
          CROSS JOIN (SELECT g.code FROM {generation} AS g ORDER BY g.number DESC LIMIT 1) AS g
          WHERE n.upstream ? c.name
            AND (g.code #>> ARRAY['graph', 'nodes', n.name, 'named'])::boolean
      )
)
