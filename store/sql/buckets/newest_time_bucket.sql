-- The newest time bucket, which is dropped last.
SELECT id FROM {bucket} WHERE family = 'time' ORDER BY low DESC LIMIT 1
