-- Part of a trial that is rolled back: old buckets are dropped.
DROP TABLE {bucket}
