-- Builds an index.
CREATE {unique} INDEX {called} ON {table} {rest}
