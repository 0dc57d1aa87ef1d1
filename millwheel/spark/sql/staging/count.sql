SELECT count(*) FROM {staging} WHERE {attempt} = ANY(%(attempts)s::uuid[])
