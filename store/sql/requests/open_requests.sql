-- Open requests to the owner of some intervals, with the dead letter that each of them is about. Those that the
-- owner has already are left out, and those that a claim finds (requests_at_claim.sql). The oldest come first, so that those of one key keep their order. Operators may insert
-- any row: a dead letter of another key is none.
SELECT r.id, x.id, r.verb, r.slot, coalesce(r.key, ''), r.payload::text, r.letter,
       d.stream, d.record_id, d.value, d.ts, d.attempts, d.parked, d.watermark, d.stamp, d.version
FROM {request} AS r
JOIN unnest(
    %(ids)s::bigint[], %(computations)s::smallint[], %(slots_from)s::integer[], %(slots_to)s::integer[]
) AS x (id, computation, slot_from, slot_to)
    ON x.computation = r.computation AND r.slot >= x.slot_from AND r.slot < x.slot_to
LEFT JOIN {dead_letter} AS d
    ON d.id = r.letter AND d.computation = r.computation AND d.slot = r.slot AND d.key = r.key
WHERE r.outcome IS NULL AND r.due_at <= now() AND r.verb <> 'set_aside' AND r.id <> ALL(%(taken)s::bigint[])
ORDER BY r.id
LIMIT %(limit)s
