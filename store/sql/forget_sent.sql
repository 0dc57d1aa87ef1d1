-- Deletes records before the stored position of their injector: all readers have acknowledged them.
DELETE FROM {sent_record} WHERE ctid = ANY (ARRAY(
    SELECT s.ctid FROM {sent_record} AS s
    WHERE s.stream = %(stream)s AND s.number < (
        SELECT (c.position -> 'reader' ->> 'next')::bigint FROM {commit_record} AS c
        WHERE c.interval_id = %(interval_id)s
        ORDER BY c.n DESC
        LIMIT 1
    )
    ORDER BY s.number
    LIMIT %(limit)s
))
