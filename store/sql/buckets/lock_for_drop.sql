-- Excludes readers and writers of a bucket's tables before the last look at what still needs them.
LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE
