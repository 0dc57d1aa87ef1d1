-- Who holds back vacuum. A reader sees the statements of other logins only with pg_read_all_stats.
CREATE VIEW {old_snapshots} AS
SELECT s.kind, s.what, s.pid, s.since, age(s.xmin) AS transactions
FROM (
    SELECT
        'session' AS kind,
        format('process %s, user %s, %s: %s', a.pid, a.usename, coalesce(a.state, 'hidden'), left(a.query, 200)) AS what,
        a.pid, a.xact_start AS since, a.backend_xmin AS xmin
    FROM pg_stat_activity AS a
    WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid()
      AND (a.datname = current_database() OR a.backend_type = 'walsender') AND a.backend_type <> 'autovacuum worker'
    UNION ALL
    SELECT 'prepared transaction', format('%s, user %s', p.gid, p.owner), NULL, p.prepared, p.transaction
    FROM pg_prepared_xacts AS p
    WHERE p.database = current_database()
    UNION ALL
    SELECT 'replication slot', r.slot_name, r.active_pid, NULL, r.xmin
    FROM pg_replication_slots AS r
    WHERE r.xmin IS NOT NULL
) AS s (kind, what, pid, since, xmin)
ORDER BY transactions DESC, s.since;
COMMENT ON VIEW {old_snapshots} IS
    'Sessions, transactions and slots that keep dead rows from being removed in all tables of the database, the oldest first';
COMMENT ON COLUMN {old_snapshots}.kind IS 'session, prepared transaction, or replication slot';
COMMENT ON COLUMN {old_snapshots}.what IS 'the session with its statement, or the name of the transaction or slot';
COMMENT ON COLUMN {old_snapshots}.pid IS 'its server process: pg_terminate_backend(pid) ends it';
COMMENT ON COLUMN {old_snapshots}.since IS 'when its transaction began; NULL: unknown, or hidden from this login';
COMMENT ON COLUMN {old_snapshots}.transactions IS 'transactions that have begun since its snapshot'
