-- A worker that ends in order gives up its lease at once.
UPDATE {worker} SET stopped = true, lease_until = now() WHERE id = %(id)s
