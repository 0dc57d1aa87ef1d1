-- Lets a column draw from the copy's own sequence.
ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {expression}
