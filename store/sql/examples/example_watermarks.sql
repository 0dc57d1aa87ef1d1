-- How far each step is; an example for readers.
SELECT computation, low_watermark, last_commit, intervals
FROM {watermarks}
ORDER BY low_watermark
