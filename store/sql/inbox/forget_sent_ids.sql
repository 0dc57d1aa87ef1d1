-- Deletes ids that need not be remembered any more.
DELETE FROM {sent_id} WHERE ctid = ANY (ARRAY(
    SELECT i.ctid FROM {sent_id} AS i
    WHERE i.stream = %(stream)s AND i.sent_at < clock_timestamp() - (
        SELECT b.remember FROM {inbox} AS b WHERE b.stream = %(stream)s
    )
    ORDER BY i.sent_at
    LIMIT %(limit)s
))
