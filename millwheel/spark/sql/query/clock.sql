SELECT max(s.micros) FROM {staging} AS s WHERE s.{attempt} = ANY(%(staged)s::uuid[]) AND s.stream = 'clock'
