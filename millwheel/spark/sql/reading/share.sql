SELECT {columns} FROM {relation} AS millwheel_table
