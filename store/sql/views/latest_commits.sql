CREATE VIEW {latest_commits} AS
SELECT
    k.id AS interval_id, c.name AS computation, c.kind, k.slot_from, k.slot_to, k.owner,
    r.n, r.stamp, r.input_watermark, r.low_watermark, r.floor, r.acked, r.position, r.counters,
    r.table_rows
FROM {key_interval} AS k
JOIN {computation} AS c ON c.id = k.computation
CROSS JOIN LATERAL (
    SELECT * FROM {commit_record} AS r WHERE r.interval_id = k.id ORDER BY r.n DESC LIMIT 1
) AS r;
COMMENT ON VIEW {latest_commits} IS 'The last commit of every key interval';
COMMENT ON COLUMN {latest_commits}.interval_id IS 'key_interval.id';
COMMENT ON COLUMN {latest_commits}.computation IS 'name of the computation';
COMMENT ON COLUMN {latest_commits}.kind IS 'injector, computation or relay';
COMMENT ON COLUMN {latest_commits}.slot_from IS 'first slot, or the partition of an injector';
COMMENT ON COLUMN {latest_commits}.slot_to IS 'one past the last slot';
COMMENT ON COLUMN {latest_commits}.owner IS 'worker that holds the interval';
COMMENT ON COLUMN {latest_commits}.n IS 'number of the commit';
COMMENT ON COLUMN {latest_commits}.stamp IS 'logical time of the commit, microseconds';
COMMENT ON COLUMN {latest_commits}.input_watermark IS 'input low watermark, microseconds';
COMMENT ON COLUMN {latest_commits}.low_watermark IS 'low watermark promised downstream, microseconds';
COMMENT ON COLUMN {latest_commits}.floor IS 'productions from before it are never sent again, microseconds';
COMMENT ON COLUMN {latest_commits}.acked IS 'by log: first number not acknowledged, and runs beyond it';
COMMENT ON COLUMN {latest_commits}.position IS 'next row of an injector; length of a part file; number and open members of a bundle';
COMMENT ON COLUMN {latest_commits}.counters IS 'totals since deploy';
COMMENT ON COLUMN {latest_commits}.table_rows IS 'rows of each numbered table that the interval has written'
