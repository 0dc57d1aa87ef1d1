-- The number of changes of queries so far.
SELECT coalesce(max(revision), 0) FROM {query}
