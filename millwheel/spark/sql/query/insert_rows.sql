INSERT INTO {target} ({columns}) SELECT {columns} FROM ({rows}) AS rows
