-- Rows of one sender of a numbered table, as JSON.
SELECT t.sequence, (to_jsonb(t) - 'sender' - 'sequence' || {extra})::text
FROM {table} AS t
WHERE t.sender = %(sender)s AND t.sequence >= %(first)s AND t.sequence < %(until)s
ORDER BY t.sequence
LIMIT %(limit)s
