-- Rows of a table sink without a key: one array for each column.
INSERT INTO {table} ({names}) SELECT {selected} FROM unnest({arrays}) AS x ({names})
