-- The same from a file, for psql.
\copy {table} ({columns}) FROM PROGRAM {command} WITH (FORMAT csv, HEADER)
