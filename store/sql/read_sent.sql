-- Records of a stream that have numbers, from a number on.
SELECT s.number, s.value, s.ts FROM {sent_record} AS s
WHERE s.stream = %(stream)s AND s.number >= %(first)s
ORDER BY s.number
LIMIT %(limit)s
