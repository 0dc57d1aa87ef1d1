-- As insert_seen.sql, for a large bundle.
INSERT INTO {table} (slot, computation, id)
SELECT * FROM unnest(%(slot)s::integer[], %(computation)s::smallint[], %(id)s::uuid[])
