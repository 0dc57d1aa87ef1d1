-- A new bucket; its tables are made in the same transaction. No row: it is there already.
INSERT INTO {bucket} (family, log, low, high) VALUES (%(family)s, %(log)s, %(low)s, %(high)s)
ON CONFLICT (family, log, low) DO NOTHING
RETURNING id
