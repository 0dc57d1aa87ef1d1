-- Gives a column of the copy the statistics target of the origin's.
ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS {target}
