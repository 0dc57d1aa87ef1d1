-- Records that were sent after the moment of a savepoint, and are still there: those that have got a number since, and those
-- that wait. They are sent once more, in their order. Records that waited in the savepoint wait there.
WITH waited AS (
    SELECT stream, value, ts, row_number() OVER (PARTITION BY stream, value, ts) AS copy FROM {restored_sent}
), taken AS (
    SELECT i.stream, t.number, t.value, t.ts,
           row_number() OVER (PARTITION BY i.stream, t.value, t.ts ORDER BY t.number) AS copy
    FROM {replaced_taken} AS t
    JOIN {replaced_inbox} AS i ON i.interval_id = t.interval_id
    WHERE NOT EXISTS (
        SELECT FROM {restored_taken} AS r WHERE r.interval_id = t.interval_id AND r.number = t.number
    )
), missing AS (
    SELECT 1 AS part, t.stream, t.number AS place, t.value, t.ts FROM taken AS t
    WHERE NOT EXISTS (
        SELECT FROM waited AS w
        WHERE w.stream = t.stream AND w.value = t.value AND w.ts = t.ts AND w.copy = t.copy
    )
    UNION ALL
    SELECT 2, s.stream, s.seq, s.value, s.ts FROM {replaced_sent} AS s
    WHERE NOT EXISTS (SELECT FROM {restored_sent} AS r WHERE r.seq = s.seq)
)
INSERT INTO {restored_sent} (stream, value, ts)
SELECT stream, value, ts FROM missing ORDER BY part, place
RETURNING stream, sha256(convert_to(value, 'UTF8')) AS digest
