-- Cuts an interval in two: the lower part keeps the interval's id, chain and logs.
WITH cut AS (
    UPDATE {key_interval} AS k SET slot_to = %(at)s WHERE k.id = %(interval_id)s
), upper AS (
    INSERT INTO {key_interval} (
        computation, slot_from, slot_to, sequencer, wanted_by, pinned, generation
    )
    SELECT k.computation, %(at)s, k.slot_to, nextval(%(sequence)s::regclass), k.wanted_by, k.pinned,
           k.generation
    FROM {key_interval} AS k
    WHERE k.id = %(interval_id)s
    RETURNING id, computation, slot_from, slot_to, sequencer
), unfolded AS (
    INSERT INTO {fold} (interval_id, through) SELECT u.id, 0 FROM upper AS u
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, reason
    )
    SELECT now(), u.id, u.computation, u.slot_from, u.slot_to, 'split',
           concat_ws(': ', 'cut off interval ' || %(interval_id)s::bigint, nullif(%(reason)s, ''))
    FROM upper AS u
)
SELECT id, sequencer FROM upper
