-- Makes a table like one of the origin, without its indexes, which are built when the rows are there.
CREATE {unlogged} TABLE {table} (LIKE {like} INCLUDING ALL EXCLUDING INDEXES) {options}
