CREATE VIEW {state_changes} AS
SELECT
    c.interval_id, c.n, c.computation, e.slot, e.key, coalesce(e.entry, '' COLLATE "C") AS entry,
    e.value, c.version
FROM {state_change} AS c
CROSS JOIN LATERAL unnest(c.slots, c.keys, c.entries, c.values) AS e (slot, key, entry, value);
COMMENT ON VIEW {state_changes} IS 'Entries of states as written by each commit, until its bucket is dropped';
COMMENT ON COLUMN {state_changes}.interval_id IS 'its key interval';
COMMENT ON COLUMN {state_changes}.n IS 'the interval''s n-th commit';
COMMENT ON COLUMN {state_changes}.computation IS 'number of the computation';
COMMENT ON COLUMN {state_changes}.slot IS 'hash of the key, 0 to 65535';
COMMENT ON COLUMN {state_changes}.key IS 'the key as compact JSON';
COMMENT ON COLUMN {state_changes}.entry IS 'empty for the state object; otherwise field/entry of a MapState or ListState';
COMMENT ON COLUMN {state_changes}.value IS 'the value as JSON; null: removed';
COMMENT ON COLUMN {state_changes}.version IS 'version of the state type that has written it'
