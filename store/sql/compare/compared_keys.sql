-- The columns of each key of a table, the primary key first: unique indexes of all rows, of columns that are not null.
SELECT array_agg(a.attname::text ORDER BY k.place)
FROM pg_catalog.pg_index AS i
CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (attnum, place)
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND a.attnotnull
WHERE i.indrelid = %(table)s::oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, i.indisprimary, i.indnkeyatts
HAVING count(a.attname) = i.indnkeyatts
ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid
