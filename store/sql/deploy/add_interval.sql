-- An interval of a new node, with nothing folded. A partition of an injector (source is not NULL) has a log
-- from the start; other intervals open one with each claim.
WITH made AS (
    INSERT INTO {key_interval} (computation, slot_from, slot_to, sequencer, generation)
    VALUES (
        %(computation)s, %(slot_from)s, %(slot_to)s, nextval(%(sequence)s::regclass), %(generation)s
    )
    RETURNING id
), unfolded AS (
    INSERT INTO {fold} (interval_id, through) SELECT m.id, 0 FROM made AS m
), opened AS (
    INSERT INTO {log} (id, interval_id, source, retired)
    SELECT nextval(%(sequence)s::regclass), m.id, %(source)s::text, false
    FROM made AS m
    WHERE %(source)s::text IS NOT NULL
)
SELECT id FROM made
