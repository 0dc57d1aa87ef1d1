-- The row of a new bucket; its tables are made in the same transaction.
INSERT INTO {bucket} (family, log, low, high) VALUES (%(family)s, %(log)s, %(low)s, %(high)s)
RETURNING id
