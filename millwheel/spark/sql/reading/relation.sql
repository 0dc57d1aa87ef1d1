-- One relation: its oid, its kind, and the number of blocks of its largest part. (A partitioned
-- table has no blocks of its own; the same block ranges then divide each of its partitions.)
SELECT
    relation.oid AS oid,
    relation.relkind::text AS kind,
    (
        SELECT COALESCE(MAX(pg_catalog.pg_relation_size(piece)), 0)
            / pg_catalog.current_setting('block_size')::int
        FROM (
            SELECT relation.oid AS piece
            WHERE relation.relkind IN ('r', 'm')
            UNION ALL
            SELECT tree.relid
            FROM pg_catalog.pg_partition_tree(relation.oid) AS tree
            WHERE relation.relkind = 'p' AND tree.isleaf
        ) AS pieces
    ) AS blocks
FROM pg_catalog.pg_class AS relation
JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relation.relnamespace
WHERE pg_namespace.nspname = %(pipeline)s
    AND relation.relname = %(table)s
    AND relation.relkind IN ('r', 'p', 'v', 'm', 'f')
