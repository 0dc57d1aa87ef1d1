-- Whether a pipeline has an inbox.
SELECT FROM {inbox} LIMIT 1
