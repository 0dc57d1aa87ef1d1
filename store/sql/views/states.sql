CREATE VIEW {states} AS
WITH tail AS (
    SELECT DISTINCT ON (x.slot, x.computation, x.key, x.entry)
        x.slot, x.computation, x.key, x.entry, x.value, x.version
    FROM {fold} AS f
    CROSS JOIN LATERAL (
        -- The upper bound and OFFSET 0 tell the planner that the tail is short: by index.
        SELECT * FROM {state_changes} AS c
        WHERE c.interval_id = f.interval_id AND c.n > f.through AND c.n < f.through + 1000000000
        OFFSET 0
    ) AS x
    ORDER BY x.slot, x.computation, x.key, x.entry, x.n DESC
), merged AS (
    SELECT s.slot, s.computation, s.key, s.entry, s.value, s.version
    FROM {state} AS s
    WHERE NOT EXISTS (
        SELECT FROM tail AS t
        WHERE t.slot = s.slot AND t.computation = s.computation AND t.key = s.key AND t.entry = s.entry
    )
    UNION ALL
    SELECT slot, computation, key, entry, value, version FROM tail WHERE value IS NOT NULL
)
SELECT c.name AS computation, m.slot, m.key::jsonb AS key, m.entry, m.value, m.version
FROM merged AS m
JOIN {computation} AS c ON c.id = m.computation AND c.removed_at IS NULL;
COMMENT ON VIEW {states} IS 'State of every key as committed, exactly at this snapshot';
COMMENT ON COLUMN {states}.computation IS 'name of the computation';
COMMENT ON COLUMN {states}.slot IS 'hash of the key, 0 to 65535';
COMMENT ON COLUMN {states}.key IS 'the key as JSON';
COMMENT ON COLUMN {states}.entry IS 'empty for the state object; otherwise field/entry of a MapState or ListState';
COMMENT ON COLUMN {states}.value IS 'the value as JSON';
COMMENT ON COLUMN {states}.version IS 'version of the state type that has written it'
