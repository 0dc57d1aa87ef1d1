-- Begins an aggregate that is new, or that follows another table than before.
INSERT INTO {aggregate} AS a (name, follows, batch, read, changed_at)
VALUES (%(name)s, %(follows)s, 0, NULL, now())
ON CONFLICT (name) DO UPDATE SET follows = excluded.follows, read = NULL
WHERE a.follows <> excluded.follows
