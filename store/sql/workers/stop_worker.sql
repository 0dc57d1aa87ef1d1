-- A worker that shuts down cleanly gives up its lease at once.
UPDATE {worker} SET stopped = true, lease_until = now() WHERE id = %(id)s
