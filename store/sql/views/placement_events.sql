CREATE VIEW {placement_events} AS
SELECT
    e.id, e.at, c.name AS computation, e.interval_id, e.slot_from, e.slot_to, e.what,
    e.from_worker, e.to_worker, e.reason
FROM {placement_event} AS e
JOIN {computation} AS c ON c.id = e.computation;
COMMENT ON VIEW {placement_events} IS 'What was decided and done about who owns what, the newest 10,000';
COMMENT ON COLUMN {placement_events}.id IS 'rises with time';
COMMENT ON COLUMN {placement_events}.at IS 'when, by the database''s clock';
COMMENT ON COLUMN {placement_events}.computation IS 'name of the computation';
COMMENT ON COLUMN {placement_events}.interval_id IS 'key_interval.id; after a merge there is none any more';
COMMENT ON COLUMN {placement_events}.slot_from IS 'first slot, or the partition of an injector';
COMMENT ON COLUMN {placement_events}.slot_to IS 'one past the last slot';
COMMENT ON COLUMN {placement_events}.what IS
    'wish: who should own it, says the balancer; pin, unpin: says an operator; wish_split, wish_merge: its owner is to; lapse: it was not done; claim, release: who took it, gave it up; split, merge: what came of it';
COMMENT ON COLUMN {placement_events}.from_worker IS 'worker that held it';
COMMENT ON COLUMN {placement_events}.to_worker IS 'worker that is to hold it, or does';
COMMENT ON COLUMN {placement_events}.reason IS 'why, in words'
