-- What holds the low watermarks; an example for readers.
SELECT computation, what, key, age, root
FROM {watermark_holders}
ORDER BY age DESC NULLS LAST
