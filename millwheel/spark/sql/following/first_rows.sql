-- Where a numbered table begins: by sender, the number of the first row that was not deleted.
SELECT
    numbered_rows.sender,
    COALESCE(
        (
            SELECT MIN(followed.sequence) FROM {table} AS followed
            WHERE followed.sender = numbered_rows.sender
        ),
        numbered_rows.rows
    )
FROM {numbered_rows} AS numbered_rows
WHERE numbered_rows.table_name = %(table)s
