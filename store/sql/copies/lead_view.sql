-- Makes a view that shows columns of a table, or lets one lead to it; grants and dependent objects stay.
CREATE OR REPLACE VIEW {view} {options} AS SELECT {columns} FROM {table}
