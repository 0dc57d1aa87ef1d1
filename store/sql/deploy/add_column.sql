-- A column that the row type of a sink has got.
ALTER TABLE {table} ADD COLUMN {column}
