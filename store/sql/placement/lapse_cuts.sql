-- Takes back wishes to split or merge.
WITH wished AS MATERIALIZED (
    SELECT k.id, x.reason
    FROM {key_interval} AS k
    JOIN unnest(%(interval_id)s::bigint[], %(sequencer)s::bigint[], %(reason)s::text[])
        AS x (id, sequencer, reason)
        ON x.id = k.id AND x.sequencer = k.sequencer
    WHERE k.split_at IS NOT NULL OR k.merge_with IS NOT NULL
    ORDER BY k.id
    FOR NO KEY UPDATE OF k
), changed AS (
    UPDATE {key_interval} AS k SET split_at = NULL, merge_with = NULL
    FROM wished AS w
    WHERE k.id = w.id
    RETURNING k.id, k.computation, k.slot_from, k.slot_to, k.owner, k.wanted_by, w.reason
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, from_worker, to_worker, reason
    )
    SELECT now(), c.id, c.computation, c.slot_from, c.slot_to, 'lapse', c.owner, c.wanted_by,
           c.reason
    FROM changed AS c
)
SELECT id FROM changed ORDER BY id
