-- Productions of a log from `first` on, in order, to send them again; weak ones keep their ids.
(
    SELECT
        p.seq, s.name, p.receiver, p.slot, p.key, p.value, p.version, p.ts, p.hold, p.stamp,
        p.stamp AS place, NULL::uuid AS id, 0 AS origin
    FROM {production} AS p JOIN {stream} AS s ON s.id = p.stream
    WHERE p.log = %(log)s AND p.seq >= %(first)s
    ORDER BY p.seq
    LIMIT %(limit)s
)
UNION ALL
(
    SELECT
        p.seq, s.name, p.receiver, p.slot, p.key, p.value, p.version, p.ts, p.hold, p.stamp,
        p.place, p.id, p.origin
    FROM {straggler} AS p JOIN {stream} AS s ON s.id = p.stream
    WHERE p.log = %(log)s AND p.seq >= %(first)s
    ORDER BY p.seq
    LIMIT %(limit)s
)
ORDER BY 1
LIMIT %(limit)s
