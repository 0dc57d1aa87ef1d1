-- Rows of a table that an older snapshot did not see, as JSON, the last transaction's first, with the number
-- of all. A row has the lower 32 bits of its transaction's number, which is below the end of the present
-- snapshot. No column of a table can have these names.
WITH present AS (
    SELECT CAST(pg_snapshot_xmax(pg_current_snapshot())::text AS bigint) AS "its end"
), written AS (
    SELECT "a row" AS content, "a row".ctid AS place,
           "its end" - (("its end" - "a row".xmin::text::bigint) & 4294967295) AS number
    FROM {table} AS "a row", present
)
SELECT row_to_json(content)::text, count(*) OVER ()
FROM written
WHERE NOT pg_visible_in_snapshot(CAST(number::text AS xid8), CAST(%(since)s AS pg_snapshot))
ORDER BY number DESC, place DESC
LIMIT %(most)s
