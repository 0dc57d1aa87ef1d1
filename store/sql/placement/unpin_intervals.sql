-- Removes pins: the balancer may move the intervals again, and until then nothing moves.
WITH wished AS MATERIALIZED (
    SELECT k.id, x.reason
    FROM {key_interval} AS k
    JOIN unnest(%(interval_id)s::bigint[], %(sequencer)s::bigint[], %(reason)s::text[])
        AS x (id, sequencer, reason)
        ON x.id = k.id AND x.sequencer = k.sequencer
    WHERE k.pinned
    ORDER BY k.id
    FOR NO KEY UPDATE OF k
), changed AS (
    UPDATE {key_interval} AS k SET pinned = false
    FROM wished AS w
    WHERE k.id = w.id
    RETURNING k.id, k.computation, k.slot_from, k.slot_to, k.owner, k.wanted_by, w.reason
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, from_worker, to_worker, reason
    )
    SELECT now(), c.id, c.computation, c.slot_from, c.slot_to, 'unpin', c.owner, c.wanted_by,
           c.reason
    FROM changed AS c
)
SELECT id FROM changed ORDER BY id
