-- The table of a sink, made from its row type.
CREATE TABLE {table} ({columns})
