-- Every table of the pipeline on disk, its buckets together, the largest first.
SELECT u.kind, u.relation, u.tables, u.bytes, u.dead_rows, u.retention FROM {disk_use} AS u ORDER BY u.bytes DESC, u.relation
