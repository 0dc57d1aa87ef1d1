-- Deletes all but the newest events.
DELETE FROM {placement_event}
WHERE id <= (SELECT max(e.id) FROM {placement_event} AS e) - %(keep)s::bigint
