-- Rows of a table sink with a key: each replaces the row that has its key.
INSERT INTO {table} ({names}) SELECT {selected} FROM unnest({arrays}) AS x ({names})
ON CONFLICT ({key}) DO UPDATE SET {changes}
