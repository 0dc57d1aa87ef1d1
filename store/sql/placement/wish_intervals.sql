-- Stores wanted owners of intervals that still have the sequencer that was read; a wish without a change
-- leaves no event. An interval pinned to a living worker stays there until an operator pins it elsewhere or
-- removes the pin.
WITH wished AS MATERIALIZED (
    SELECT k.id, x.worker, x.pinned, x.reason
    FROM {key_interval} AS k
    JOIN unnest(
        %(interval_id)s::bigint[], %(sequencer)s::bigint[], %(worker)s::uuid[], %(reason)s::text[],
        %(pinned)s::boolean[]
    ) AS x (id, sequencer, worker, reason, pinned)
        ON x.id = k.id AND x.sequencer = k.sequencer
    WHERE (k.wanted_by, k.pinned) IS DISTINCT FROM (x.worker, x.pinned)
      AND (
          x.pinned OR NOT k.pinned OR NOT EXISTS (
              SELECT FROM {worker} AS w
              WHERE w.id = k.wanted_by AND NOT w.stopped AND w.lease_until > now()
          )
      )
    ORDER BY k.id
    FOR NO KEY UPDATE OF k
), changed AS (
    UPDATE {key_interval} AS k SET wanted_by = w.worker, pinned = w.pinned
    FROM wished AS w
    WHERE k.id = w.id
    RETURNING
        k.id, k.computation, k.slot_from, k.slot_to, k.owner, k.wanted_by, k.pinned, w.reason
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, from_worker, to_worker, reason
    )
    SELECT now(), c.id, c.computation, c.slot_from, c.slot_to,
           CASE WHEN c.pinned THEN 'pin' ELSE 'wish' END, c.owner, c.wanted_by, c.reason
    FROM changed AS c
)
SELECT id FROM changed ORDER BY id
