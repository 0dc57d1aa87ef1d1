-- Keeps the tables, and the buckets that inherit from them, from being dropped until the transaction ends.
-- Run before the first query of a snapshot: rows of a bucket dropped after it would be missing.
LOCK TABLE {tables} IN ACCESS SHARE MODE
