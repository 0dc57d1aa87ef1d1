-- Makes the interval and the log of a partition that was found, if the finder still owns the interval of
-- the discovery: after a claim by another worker it finds no row here (I3). Its slot is the first free
-- one of the computation.
WITH discovery AS (
    SELECT k.id, k.computation, k.generation
    FROM {key_interval} AS k
    WHERE k.id = %(discovery)s AND k.sequencer = %(sequencer)s
    FOR SHARE OF k
), behind AS (
    SELECT min(k.slot_to) AS slot
    FROM {key_interval} AS k JOIN discovery AS d ON d.computation = k.computation
    WHERE NOT EXISTS (
        SELECT FROM {key_interval} AS n
        WHERE n.computation = k.computation AND n.slot_from = k.slot_to
    )
), made AS (
    INSERT INTO {key_interval} (computation, slot_from, slot_to, sequencer, generation)
    SELECT d.computation, b.slot, b.slot + 1, nextval(%(sequence)s::regclass), d.generation
    FROM discovery AS d CROSS JOIN behind AS b
    RETURNING id, computation, slot_from, slot_to, sequencer
), unfolded AS (
    INSERT INTO {fold} (interval_id, through) SELECT m.id, 0 FROM made AS m
), opened AS (
    INSERT INTO {log} (id, interval_id, source, retired)
    SELECT nextval(%(sequence)s::regclass), m.id, %(source)s, false FROM made AS m
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, reason
    )
    SELECT now(), m.id, m.computation, m.slot_from, m.slot_to, 'partition', 'found: ' || %(source)s
    FROM made AS m
)
SELECT id, sequencer FROM made
