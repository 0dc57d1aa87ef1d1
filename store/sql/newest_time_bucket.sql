-- The bucket that goes last.
SELECT id FROM {bucket} WHERE family = 'time' ORDER BY low DESC LIMIT 1
