-- The newest bucket there is: one with a lower id that is not there was dropped.
SELECT coalesce(max(id), 0) FROM {bucket}
