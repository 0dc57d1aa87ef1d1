CREATE VIEW {disk_use} AS
SELECT
    CASE
        WHEN t.relation IN ('state', 'state_change', 'fold') THEN 'state'
        WHEN t.relation IN ('timer', 'timer_change') THEN 'timers'
        WHEN t.relation IN ('production', 'straggler', 'sent_record', 'taken_record') THEN 'records'
        WHEN t.relation IN ('seen_record', 'sent_id') THEN 'seen ids'
        WHEN t.relation = 'commit_record' THEN 'commits'
        WHEN t.relation = 'dead_letter' THEN 'dead letters'
        WHEN t.relation IN (
            'aggregate', 'alembic_version', 'bucket', 'computation', 'ended_sender', 'generation', 'inbox',
            'incarnation', 'key_interval', 'log', 'peer_secret', 'pipeline', 'placement_event', 'request', 'spark_query',
            'spark_start', 'stream', 'worker'
        ) THEN 'bookkeeping'
        ELSE 'own tables'
    END AS kind,
    t.relation, count(*)::integer AS tables, sum(t.bytes)::bigint AS bytes
FROM (
    SELECT coalesce(parent.relname, c.relname)::text AS relation, pg_total_relation_size(c.oid) AS bytes
    FROM pg_class AS c
    LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
    LEFT JOIN pg_class AS parent ON parent.oid = i.inhparent AND parent.relnamespace = c.relnamespace
    WHERE c.relkind = 'r'
      AND c.relnamespace = (
          SELECT own.relnamespace FROM {pipeline} AS p JOIN pg_class AS own ON own.oid = p.tableoid
      )
) AS t
GROUP BY 1, 2
ORDER BY bytes DESC, relation;
COMMENT ON VIEW {disk_use} IS 'Disk space of the pipeline''s tables with their indexes, the largest first';
COMMENT ON COLUMN {disk_use}.kind IS
    'state, timers, records, seen ids, commits, dead letters, bookkeeping, or own tables: those of sinks, and others';
COMMENT ON COLUMN {disk_use}.relation IS 'table; its buckets are counted together';
COMMENT ON COLUMN {disk_use}.tables IS 'tables: itself and its buckets';
COMMENT ON COLUMN {disk_use}.bytes IS 'size in bytes, as of now and not of the snapshot'
