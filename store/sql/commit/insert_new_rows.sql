-- Rows of a table sink with all columns in its key: an existing row stays.
INSERT INTO {table} ({names}) SELECT {selected} FROM unnest({arrays}) AS x ({names})
ON CONFLICT ({key}) DO NOTHING
