INSERT INTO {batches} (batch, attempts, rows) VALUES (%(batch)s, %(attempts)s::uuid[], %(rows)s)
