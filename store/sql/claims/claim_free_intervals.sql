-- Claims free intervals only: they still have the sequencer that was read, and no owner or an owner with an
-- expired lease by the database's clock. Like every claim it raises the sequencers first (I4). It skips
-- intervals that newer code has owned, because this worker may not be able to read their data; a worker
-- that is not registered counts as the oldest code. The rows are locked in order of id, so that two claims
-- do not deadlock. now() is the start of the transaction, so no lease expires while the claim waits.
WITH claimer AS (
    SELECT coalesce((SELECT w.generation FROM {worker} AS w WHERE w.id = %(owner)s::uuid), 1)
        AS generation
), free AS MATERIALIZED (
    SELECT k.id, k.owner
    FROM {key_interval} AS k
    JOIN unnest(%(interval_ids)s::bigint[], %(sequencers)s::bigint[]) AS x (id, sequencer)
        ON x.id = k.id AND x.sequencer = k.sequencer
    CROSS JOIN claimer AS c
    WHERE k.generation <= c.generation
      AND (
          k.owner IS NULL
          OR k.owner = %(owner)s::uuid
          OR NOT EXISTS (
              SELECT FROM {worker} AS w
              WHERE w.id = k.owner AND NOT w.stopped AND w.lease_until > now()
          )
      )
    ORDER BY k.id
    FOR NO KEY UPDATE OF k
), claimed AS (
    UPDATE {key_interval} AS k
    SET sequencer = nextval(%(sequence)s::regclass), owner = %(owner)s::uuid,
        generation = c.generation, split_at = NULL, merge_with = NULL
    FROM free AS f CROSS JOIN claimer AS c
    WHERE k.id = f.id
    RETURNING k.id, k.computation, k.slot_from, k.slot_to, k.sequencer, f.owner AS before
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, from_worker, to_worker, reason
    )
    SELECT now(), c.id, c.computation, c.slot_from, c.slot_to, 'claim', c.before, %(owner)s::uuid,
           CASE
               WHEN c.before IS NULL THEN 'it had no owner'
               WHEN c.before = %(owner)s::uuid THEN 'it is its own'
               ELSE 'the lease of its owner is over'
           END
    FROM claimed AS c
)
SELECT id, sequencer FROM claimed
