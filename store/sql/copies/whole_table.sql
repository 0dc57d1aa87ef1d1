-- Makes a table in another store from definitions of its columns and checks.
CREATE {unlogged} TABLE {table} ({definitions}) {options}
