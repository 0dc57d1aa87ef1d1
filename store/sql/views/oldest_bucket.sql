-- What keeps the oldest bucket of time. It is dropped when no log may send a record of it again, all commits in it are
-- folded and followed by others, and no session reads it.
CREATE VIEW {oldest_bucket} AS
WITH oldest AS (
    SELECT b.id, b.low, b.high FROM {bucket} AS b WHERE b.family = 'time' ORDER BY b.low LIMIT 1
), closed AS ( -- the current bucket is kept because it is written
    SELECT * FROM oldest WHERE high <= extract(epoch FROM clock_timestamp()) * 1000000
), latest AS (
    SELECT k.id, c.name, k.slot_from, k.slot_to, k.owner, r.n, r.floor, r.stamp, f.through
    FROM {key_interval} AS k
    JOIN {computation} AS c ON c.id = k.computation
    JOIN {fold} AS f ON f.interval_id = k.id
    CROSS JOIN LATERAL (
        SELECT * FROM {commit_record} AS x WHERE x.interval_id = k.id ORDER BY x.n DESC LIMIT 1
    ) AS r
), kept AS (
    SELECT
        o.id, 'records' AS kept_by,
        format(
            '%s[%s:%s] may send records from %s on again', l.name, l.slot_from, l.slot_to,
            {micros_to_time}(l.floor)
        ) AS what,
        l.owner, {micros_to_time}(l.floor) AS since
    FROM closed AS o JOIN latest AS l ON l.floor < o.high
    UNION ALL
    SELECT
        o.id, 'last commit',
        format('%s[%s:%s] has committed nothing since %s', l.name, l.slot_from, l.slot_to, {micros_to_time}(l.stamp)),
        l.owner, {micros_to_time}(l.stamp)
    FROM closed AS o JOIN latest AS l ON l.stamp < o.high
    UNION ALL
    SELECT
        o.id, 'fold',
        format('%s[%s:%s] has %s commits that are not folded', l.name, l.slot_from, l.slot_to, l.n - l.through),
        l.owner, {micros_to_time}(r.stamp)
    FROM closed AS o
    JOIN latest AS l ON l.through < l.n
    CROSS JOIN LATERAL (
        SELECT x.stamp FROM {commit_record} AS x
        WHERE x.interval_id = l.id AND x.n > l.through ORDER BY x.n LIMIT 1
    ) AS r
    WHERE r.stamp < o.high
    UNION ALL
    SELECT DISTINCT
        o.id, 'reader',
        format('process %s, user %s, reads it: %s', a.pid, a.usename, left(a.query, 200)), NULL::uuid, a.xact_start
    FROM closed AS o
    JOIN {pipeline} AS p ON true
    JOIN pg_class AS own ON own.oid = p.tableoid
    JOIN pg_class AS c ON c.relnamespace = own.relnamespace AND c.relname IN (
        'commit_record_' || o.id, 'state_change_' || o.id, 'timer_change_' || o.id, 'production_' || o.id,
        'straggler_' || o.id, 'seen_record_' || o.id, 'seen_run_' || o.id
    )
    JOIN pg_locks AS l ON l.relation = c.oid AND l.granted AND l.pid <> pg_backend_pid()
    JOIN pg_stat_activity AS a ON a.pid = l.pid
)
SELECT
    o.id AS bucket, {micros_to_time}(o.low) AS begins, {micros_to_time}(o.high) AS ends,
    k.kept_by, k.what, k.owner, k.since
FROM oldest AS o
LEFT JOIN kept AS k ON k.id = o.id
ORDER BY k.since;
COMMENT ON VIEW {oldest_bucket} IS
    'Reasons why the oldest bucket of records, seen ids and commits is kept, one row for each';
COMMENT ON COLUMN {oldest_bucket}.bucket IS 'id of the bucket: the last part of the names of its tables';
COMMENT ON COLUMN {oldest_bucket}.begins IS 'logical time of its first commits';
COMMENT ON COLUMN {oldest_bucket}.ends IS 'logical time at which the next bucket begins';
COMMENT ON COLUMN {oldest_bucket}.kept_by IS
    'records: they may be sent again; last commit: an interval needs it; fold: not folded yet; reader: a session; NULL: nothing';
COMMENT ON COLUMN {oldest_bucket}.what IS 'the reason in words';
COMMENT ON COLUMN {oldest_bucket}.owner IS 'worker that owns the interval';
COMMENT ON COLUMN {oldest_bucket}.since IS 'the time that keeps it; for a reader, when its transaction began'
