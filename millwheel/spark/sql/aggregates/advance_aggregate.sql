-- Notes that a batch is done; changes nothing if another process has done it.
UPDATE {aggregate} SET batch = batch + 1, read = %(read)s, changed_at = now()
WHERE name = %(name)s AND batch = %(batch)s
