-- All buckets, oldest first.
SELECT id, family, log, low, high FROM {bucket} ORDER BY family, log, low
