-- Records of a stream that were taken, from a number on.
SELECT t.number, t.value, t.ts FROM {taken_record} AS t
WHERE t.stream = %(stream)s AND t.number >= %(first)s
ORDER BY t.number
LIMIT %(limit)s
