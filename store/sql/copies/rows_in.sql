-- Takes rows into a new table of a copy. Identity columns get the given values. The first line must have these columns.
COPY {table} ({columns}) FROM STDIN WITH (FORMAT csv, HEADER MATCH)
