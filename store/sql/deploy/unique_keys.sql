-- The columns of each unique index of a table that covers all rows, in alphabetical order.
SELECT array_agg(a.attname::text ORDER BY a.attname)
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = %(table)s::regclass AND i.indisunique AND i.indpred IS NULL
GROUP BY i.indexrelid
