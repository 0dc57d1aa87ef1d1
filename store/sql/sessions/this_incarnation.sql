-- The text that tells this incarnation of the server from every other (decision 40): start of the postmaster,
-- oid of the table, and the id drawn for this run. No row: no session has named the incarnation yet, or the row
-- is older than the last crash recovery, which has not emptied the table (decision 84). Other statements use it
-- as a subquery, (this_incarnation).
SELECT extract(epoch FROM pg_postmaster_start_time())::text || ' ' || i.tableoid::text || ' ' || i.id::text
FROM {incarnation} AS i
WHERE i.began_at >= ({recovered_at})
