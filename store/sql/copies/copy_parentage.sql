-- Makes a table one of the buckets of its parent.
ALTER TABLE {table} INHERIT {parent}
