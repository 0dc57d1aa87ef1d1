-- A column that rows may be without from now on.
ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL
