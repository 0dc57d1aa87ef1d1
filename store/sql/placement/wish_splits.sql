-- Stores wishes that owners split intervals at a slot, if the sequencer is still the one that was read and
-- the slot is inside. A wish to cut replaces an earlier one.
WITH wished AS MATERIALIZED (
    SELECT k.id, x.at, x.reason
    FROM {key_interval} AS k
    JOIN unnest(
        %(interval_id)s::bigint[], %(sequencer)s::bigint[], %(at)s::integer[], %(reason)s::text[]
    ) AS x (id, sequencer, at, reason)
        ON x.id = k.id AND x.sequencer = k.sequencer
    WHERE k.split_at IS DISTINCT FROM x.at AND k.slot_from < x.at AND x.at < k.slot_to
    ORDER BY k.id
    FOR NO KEY UPDATE OF k
), changed AS (
    UPDATE {key_interval} AS k SET split_at = w.at, merge_with = NULL
    FROM wished AS w
    WHERE k.id = w.id
    RETURNING
        k.id, k.computation, k.slot_from, k.slot_to, k.owner, k.wanted_by,
        concat_ws(': ', 'at slot ' || w.at, nullif(w.reason, '')) AS reason
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, from_worker, to_worker, reason
    )
    SELECT now(), c.id, c.computation, c.slot_from, c.slot_to, 'wish_split', c.owner, c.wanted_by,
           c.reason
    FROM changed AS c
)
SELECT id FROM changed ORDER BY id
