-- Rows of one sender of a numbered table, as JSON.
SELECT t.sequence, (SELECT row_to_json(r)::text FROM (SELECT {values}) AS r)
FROM {table} AS t
WHERE t.sender = %(sender)s AND t.sequence >= %(first)s AND t.sequence < %(until)s
ORDER BY t.sequence
LIMIT %(limit)s
