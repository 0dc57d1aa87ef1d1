-- Lets a sequence go on where that of the origin is. Sequences have no snapshot: read after the rows, it is beyond all of them.
SELECT pg_catalog.setval({sequence}::regclass, last_value, is_called) FROM {like}
