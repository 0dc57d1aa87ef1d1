-- Deletes the row of a bucket and drops its tables.
SELECT {drop_bucket}(%(id)s)
