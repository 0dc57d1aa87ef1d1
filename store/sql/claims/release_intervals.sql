-- Releases intervals: their wanted owners, or any worker, may claim them now.
WITH mine AS MATERIALIZED (
    SELECT k.id
    FROM {key_interval} AS k
    JOIN unnest(%(interval_ids)s::bigint[], %(sequencers)s::bigint[]) AS x (id, sequencer)
        ON x.id = k.id AND x.sequencer = k.sequencer
    WHERE k.owner = %(owner)s::uuid
    ORDER BY k.id
    FOR NO KEY UPDATE OF k
), released AS (
    UPDATE {key_interval} AS k SET owner = NULL
    FROM mine AS m
    WHERE k.id = m.id
    RETURNING k.id, k.computation, k.slot_from, k.slot_to, k.wanted_by
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, from_worker, to_worker, reason
    )
    SELECT now(), r.id, r.computation, r.slot_from, r.slot_to, 'release', %(owner)s::uuid,
           r.wanted_by, 'drained and folded'
    FROM released AS r
)
SELECT id FROM released ORDER BY id
