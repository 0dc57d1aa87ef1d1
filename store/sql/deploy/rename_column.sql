-- A column that the row type of a sink has under another name.
ALTER TABLE {table} RENAME COLUMN {former} TO {column}
