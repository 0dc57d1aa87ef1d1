CREATE VIEW {fold_lag} AS
SELECT
    l.computation, l.interval_id, l.slot_from, l.slot_to, l.owner, l.n - f.through AS commits,
    CASE
        WHEN l.n > f.through THEN clock_timestamp() - (
            SELECT {micros_to_time}(r.stamp) FROM {commit_record} AS r
            WHERE r.interval_id = l.interval_id AND r.n > f.through ORDER BY r.n LIMIT 1
        )
    END AS age
FROM {latest_commits} AS l
JOIN {fold} AS f ON f.interval_id = l.interval_id
ORDER BY commits DESC, l.interval_id;
COMMENT ON VIEW {fold_lag} IS
    'How far each interval''s current state and timers are behind its commits; a look at state reads the rows between';
COMMENT ON COLUMN {fold_lag}.computation IS 'name of the computation';
COMMENT ON COLUMN {fold_lag}.interval_id IS 'key_interval.id';
COMMENT ON COLUMN {fold_lag}.slot_from IS 'first slot, or the partition of an injector';
COMMENT ON COLUMN {fold_lag}.slot_to IS 'one past the last slot';
COMMENT ON COLUMN {fold_lag}.owner IS 'worker that holds the interval';
COMMENT ON COLUMN {fold_lag}.commits IS 'commits that are not folded';
COMMENT ON COLUMN {fold_lag}.age IS 'age of the oldest of them; NULL: all are folded'
