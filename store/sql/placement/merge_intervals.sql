-- The interval that two neighbours are merged into; it has the wanted owner of the lower one.
WITH merged AS (
    INSERT INTO {key_interval} (
        computation, slot_from, slot_to, sequencer, wanted_by, pinned, generation
    )
    SELECT k.computation, %(slot_from)s, %(slot_to)s, nextval(%(sequence)s::regclass),
           k.wanted_by, k.pinned,
           (
               SELECT max(p.generation) FROM {key_interval} AS p
               WHERE p.id IN (%(lower_id)s::bigint, %(upper_id)s::bigint)
           )
    FROM {key_interval} AS k
    WHERE k.id = %(lower_id)s
    RETURNING id, computation, slot_from, slot_to, sequencer
), unfolded AS (
    INSERT INTO {fold} (interval_id, through) SELECT m.id, 0 FROM merged AS m
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, reason
    )
    SELECT now(), m.id, m.computation, m.slot_from, m.slot_to, 'merge',
           concat_ws(
               ': ',
               'was intervals ' || %(lower_id)s::bigint || ' and ' || %(upper_id)s::bigint,
               nullif(%(reason)s, '')
           )
    FROM merged AS m
)
SELECT id, sequencer FROM merged
