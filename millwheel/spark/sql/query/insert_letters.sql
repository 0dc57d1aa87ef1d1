INSERT INTO {dead_letter} (
    slot, computation, stream, record_id, key, value, ts, place, error, traceback, attempts, stamp
)
SELECT
    x.slot, c.id, x.stream, NULL, x.key, x.value, x.ts, x.place, x.error, x.traceback, x.attempts, x.stamp
FROM {staging} AS s
CROSS JOIN LATERAL jsonb_to_record(s.value::jsonb) AS x (
    slot integer, computation text, stream text, key text, value text, ts bigint, place text, error text,
    traceback text, attempts integer, stamp bigint
)
JOIN {computation} AS c ON c.name = x.computation
WHERE s.{attempt} = ANY(%(staged)s::uuid[]) AND s.stream = 'letter'
