-- Drops a query. The row stays: it has the number of the change.
UPDATE {query}
SET dropped_at = now(), revision = (SELECT max(revision) + 1 FROM {query})
WHERE name = %(name)s AND dropped_at IS NULL
