-- Stores wishes that owners merge intervals with their upper neighbours, if the sequencer is still the one
-- that was read and the neighbour is right. Partitions of injectors are never merged.
WITH wished AS MATERIALIZED (
    SELECT k.id, x.upper_id, x.reason
    FROM {key_interval} AS k
    JOIN unnest(
        %(interval_id)s::bigint[], %(sequencer)s::bigint[], %(upper_id)s::bigint[], %(reason)s::text[]
    ) AS x (id, sequencer, upper_id, reason)
        ON x.id = k.id AND x.sequencer = k.sequencer
    WHERE k.merge_with IS DISTINCT FROM x.upper_id
      AND EXISTS (
          SELECT FROM {key_interval} AS u
          JOIN {computation} AS c ON c.id = u.computation
          WHERE u.id = x.upper_id AND u.computation = k.computation AND u.slot_from = k.slot_to
            AND c.kind <> 'injector'
      )
    ORDER BY k.id
    FOR NO KEY UPDATE OF k
), changed AS (
    UPDATE {key_interval} AS k SET merge_with = w.upper_id, split_at = NULL
    FROM wished AS w
    WHERE k.id = w.id
    RETURNING
        k.id, k.computation, k.slot_from, k.slot_to, k.owner, k.wanted_by,
        concat_ws(': ', 'with interval ' || w.upper_id, nullif(w.reason, '')) AS reason
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, from_worker, to_worker, reason
    )
    SELECT now(), c.id, c.computation, c.slot_from, c.slot_to, 'wish_merge', c.owner, c.wanted_by,
           c.reason
    FROM changed AS c
)
SELECT id FROM changed ORDER BY id
