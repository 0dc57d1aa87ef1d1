-- A column whose values all are values of the new type.
ALTER TABLE {table} ALTER COLUMN {column} TYPE {type}
