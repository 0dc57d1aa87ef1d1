-- Updates a stream that was deployed before.
UPDATE {stream} SET version = %(version)s, type = %(type)s WHERE name = %(name)s
