INSERT INTO {target} ({columns}) SELECT {columns} FROM {staging} WHERE {attempt} = ANY(%(attempts)s::uuid[])
