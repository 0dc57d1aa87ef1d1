-- How many ids of some slots a bucket has, to make a filter for them.
SELECT count(*) FROM {table}
WHERE computation = %(computation)s AND slot >= %(slot_from)s AND slot < %(slot_to)s
