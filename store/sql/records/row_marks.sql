-- Hashes of rows of a numbered table, and a hash of its columns: with another column, rows have other hashes.
SELECT
    r.sender, t.sequence, hash_record_extended(t, 0),
    (
        SELECT hashtextextended(
            string_agg(format('%%s %%s', a.attname, format_type(a.atttypid, a.atttypmod)), ',' ORDER BY a.attnum), 0
        )
        FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = %(relation)s::regclass AND a.attnum > 0 AND NOT a.attisdropped
    )
FROM unnest(%(senders)s::bigint[], %(firsts)s::bigint[], %(untils)s::bigint[]) AS r (sender, first, until)
JOIN {table} AS t ON t.sender = r.sender AND t.sequence >= r.first AND t.sequence < r.until
ORDER BY r.sender, t.sequence
