-- Rows of a table sink all of whose columns are its key: a row that is there already stays.
INSERT INTO {table} ({names}) SELECT {selected} FROM unnest({arrays}) AS x ({names})
ON CONFLICT ({key}) DO NOTHING
