-- The groups to which new rows of a followed table belong, and how many rows belong to each.
SELECT {values}, COUNT(*)
FROM {follows} AS followed, unnest(
    %(senders)s::bigint[], %(firsts)s::bigint[], %(untils)s::bigint[]
) AS new_rows (of_sender, first_number, until_number)
WHERE followed.sender = new_rows.of_sender
    AND followed.sequence >= new_rows.first_number
    AND followed.sequence < new_rows.until_number
GROUP BY {places}
