-- Number of ids of some slots in a bucket, to choose the size of a filter for them.
SELECT count(*) FROM {table}
WHERE computation = %(computation)s AND slot >= %(slot_from)s AND slot < %(slot_to)s
