-- Says who should own what, where the interval is still the one that was looked at; what
-- changes nothing leaves no event.
WITH wished AS MATERIALIZED (
    SELECT k.id, x.worker, x.reason
    FROM {key_interval} AS k
    JOIN unnest(
        %(interval_ids)s::bigint[], %(sequencers)s::bigint[], %(workers)s::uuid[], %(reasons)s::text[]
    ) AS x (id, sequencer, worker, reason)
        ON x.id = k.id AND x.sequencer = k.sequencer
    WHERE k.wanted_by IS DISTINCT FROM x.worker
    ORDER BY k.id
    FOR NO KEY UPDATE OF k
), changed AS (
    UPDATE {key_interval} AS k SET wanted_by = w.worker
    FROM wished AS w
    WHERE k.id = w.id
    RETURNING k.id, k.computation, k.slot_from, k.slot_to, k.owner, k.wanted_by, w.reason
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, from_worker, to_worker, reason
    )
    SELECT now(), c.id, c.computation, c.slot_from, c.slot_to, 'wish', c.owner, c.wanted_by, c.reason
    FROM changed AS c
)
SELECT id FROM changed ORDER BY id
