CREATE VIEW {placement_events} AS
SELECT
    e.id, e.at, c.name AS computation, e.interval_id, e.slot_from, e.slot_to, e.what,
    e.from_worker, e.to_worker, e.reason
FROM {placement_event} AS e
JOIN {computation} AS c ON c.id = e.computation;
COMMENT ON VIEW {placement_events} IS 'Decisions about ownership and their execution, the newest 10,000';
COMMENT ON COLUMN {placement_events}.id IS 'increases with time';
COMMENT ON COLUMN {placement_events}.at IS 'time of the event, by the database''s clock';
COMMENT ON COLUMN {placement_events}.computation IS 'name of the computation';
COMMENT ON COLUMN {placement_events}.interval_id IS 'key_interval.id; the row is gone after a merge';
COMMENT ON COLUMN {placement_events}.slot_from IS 'first slot, or the partition of an injector';
COMMENT ON COLUMN {placement_events}.slot_to IS 'one past the last slot';
COMMENT ON COLUMN {placement_events}.what IS
    'wish: the balancer chose an owner; pin, unpin: an operator did, or removed the pin; wish_split, wish_merge: its owner should split or merge it; lapse: that was taken back; claim, release: a worker took it, gave it up; split, merge: it was made so';
COMMENT ON COLUMN {placement_events}.from_worker IS 'former owner';
COMMENT ON COLUMN {placement_events}.to_worker IS 'new or wanted owner';
COMMENT ON COLUMN {placement_events}.reason IS 'the reason in words'
