-- Productions of a log from `first` on, in order, to be sent again.
SELECT p.seq, s.name, p.receiver, p.slot, p.key, p.value, p.version, p.ts, p.hold, p.stamp
FROM {production} AS p JOIN {stream} AS s ON s.id = p.stream
WHERE p.log = %(log)s AND p.seq >= %(first)s
ORDER BY p.seq
LIMIT %(limit)s
