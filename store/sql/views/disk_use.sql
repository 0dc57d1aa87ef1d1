CREATE VIEW {disk_use} AS
SELECT k.kind, k.relation, count(*)::integer AS tables, sum(k.bytes)::bigint AS bytes,
    CASE
        WHEN k.kind = 'state' THEN
            'until code clears it; of a step that writes panes to a table, until no older pane can come'
        WHEN k.kind = 'timers' THEN 'until they fire or are cancelled'
        WHEN k.kind IN ('records', 'seen ids', 'commits') THEN 'until their bucket is dropped: see oldest_bucket'
        WHEN k.kind = 'dead letters' THEN 'until they are retried or discarded'
        WHEN k.relation = 'request' THEN '30 days after they are settled'
        WHEN k.relation = 'log' THEN 'until all of its records are acknowledged, and it has another owner'
    END AS retention,
    sum(k.dead_rows)::bigint AS dead_rows
FROM (
    SELECT
        CASE
            WHEN t.relation IN ('state', 'state_change', 'fold') THEN 'state'
            WHEN t.relation IN ('timer', 'timer_change') THEN 'timers'
            WHEN t.relation IN ('production', 'straggler', 'sent_record', 'taken_record') THEN 'records'
            WHEN t.relation IN ('seen_record', 'seen_run', 'sent_id') THEN 'seen ids'
            WHEN t.relation = 'commit_record' THEN 'commits'
            WHEN t.relation = 'dead_letter' THEN 'dead letters'
            WHEN t.relation IN (
                'aggregate', 'alembic_version', 'blocking_item', 'bucket', 'computation', 'ended_sender', 'generation',
                'inbox', 'incarnation', 'key_interval', 'leader', 'log', 'peer_secret', 'pipeline', 'placement_event',
                'query', 'request', 'spark_query', 'spark_start', 'stream', 'worker', 'worker_end'
            ) THEN 'bookkeeping'
            ELSE 'own tables'
        END AS kind,
        t.relation, t.bytes, t.dead_rows
    FROM (
        SELECT coalesce(parent.relname, c.relname)::text AS relation, pg_total_relation_size(c.oid) AS bytes,
               pg_stat_get_dead_tuples(c.oid) AS dead_rows
        FROM pg_class AS c
        LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
        LEFT JOIN pg_class AS parent ON parent.oid = i.inhparent AND parent.relnamespace = c.relnamespace
        WHERE c.relkind = 'r'
          AND c.relnamespace = (
              SELECT own.relnamespace FROM {pipeline} AS p JOIN pg_class AS own ON own.oid = p.tableoid
          )
    ) AS t
) AS k
GROUP BY k.kind, k.relation
ORDER BY bytes DESC, relation;
COMMENT ON VIEW {disk_use} IS 'Disk space of the pipeline''s tables with their indexes, the largest first';
COMMENT ON COLUMN {disk_use}.kind IS
    'state, timers, records, seen ids, commits, dead letters, bookkeeping, or own tables: those of sinks, and others';
COMMENT ON COLUMN {disk_use}.relation IS 'table; its buckets are counted together';
COMMENT ON COLUMN {disk_use}.tables IS 'tables: itself and its buckets';
COMMENT ON COLUMN {disk_use}.bytes IS 'size in bytes, as of now and not of the snapshot';
COMMENT ON COLUMN {disk_use}.retention IS 'how long its rows stay; null: for as long as the pipeline, or as you keep them';
COMMENT ON COLUMN {disk_use}.dead_rows IS
    'former versions of rows that are not removed yet, by the server''s estimate; many: see old_snapshots, or vacuum is behind'
