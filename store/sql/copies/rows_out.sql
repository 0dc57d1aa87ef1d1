-- Reads the rows of a table, without those of tables that inherit from it, as CSV: NULL is an empty value without quotation
-- marks. Each version of Postgres reads it.
COPY (SELECT {columns} FROM ONLY {table}) TO STDOUT WITH (FORMAT csv, HEADER)
