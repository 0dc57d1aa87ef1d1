-- Deletes records before the stored position of their injector: all readers have acknowledged them.
-- The position is JSON of `SourceProgress` (millwheel/core/source_progress.py).
DELETE FROM {taken_record} WHERE ctid = ANY (ARRAY(
    SELECT t.ctid FROM {taken_record} AS t
    WHERE t.interval_id = %(interval_id)s AND t.number < (
        SELECT (c.position -> 'reader' ->> 'next')::bigint FROM {commit_record} AS c
        WHERE c.interval_id = %(interval_id)s
        ORDER BY c.n DESC
        LIMIT 1
    )
    ORDER BY t.number
    LIMIT %(limit)s
))
