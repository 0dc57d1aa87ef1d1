-- Adds a key or another constraint with an index.
ALTER TABLE {table} ADD CONSTRAINT {called} {definition}
