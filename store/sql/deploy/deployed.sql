-- All generations that were deployed, oldest first.
SELECT number, code::text FROM {generation} ORDER BY number
