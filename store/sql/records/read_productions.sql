-- Productions of a log from the row that has `first` on, in order, to send them again, as columns; weak ones keep their
-- ids, and have rows of their own.
(
    SELECT
        p.first, s.name, p.receiver, p.slots, p.keys, p.values, p.version, p.ts, p.holds, p.stamp,
        p.stamp AS place, NULL::uuid AS id, 0 AS origin
    FROM {production} AS p JOIN {stream} AS s ON s.id = p.stream
    WHERE p.log = %(log)s AND p.last >= %(first)s
    ORDER BY p.last
    LIMIT %(limit)s
)
UNION ALL
(
    SELECT
        p.seq, s.name, p.receiver, ARRAY[p.slot], ARRAY[p.key], ARRAY[p.value], p.version, ARRAY[p.ts],
        ARRAY[p.hold], p.stamp, p.place, p.id, p.origin
    FROM {straggler} AS p JOIN {stream} AS s ON s.id = p.stream
    WHERE p.log = %(log)s AND p.seq >= %(first)s
    ORDER BY p.seq
    LIMIT %(limit)s
)
ORDER BY 1
LIMIT %(limit)s
