-- Deletes the intervals and logs of partitions that have ended, if the finder still owns the interval of the
-- discovery (I3). All their rows are acknowledged; their logs keep no bucket any more.
WITH discovery AS (
    SELECT k.id, k.computation
    FROM {key_interval} AS k
    WHERE k.id = %(discovery)s AND k.sequencer = %(sequencer)s
    FOR SHARE OF k
), ended AS MATERIALIZED (
    SELECT k.id, k.computation, k.slot_from, k.slot_to, g.source
    FROM {key_interval} AS k
    JOIN discovery AS d ON d.computation = k.computation AND d.id <> k.id
    JOIN {log} AS g ON g.interval_id = k.id AND g.source IS NOT NULL
    WHERE k.id = ANY(%(interval_ids)s::bigint[])
    ORDER BY k.id
    FOR UPDATE OF k
), unfolded AS (
    DELETE FROM {fold} AS f USING ended AS e WHERE f.interval_id = e.id
), unsent AS (
    DELETE FROM {log} AS l USING ended AS e WHERE l.interval_id = e.id
), noted AS (
    INSERT INTO {placement_event} (
        at, interval_id, computation, slot_from, slot_to, what, reason
    )
    SELECT now(), e.id, e.computation, e.slot_from, e.slot_to, 'partition', 'ended: ' || e.source
    FROM ended AS e
)
DELETE FROM {key_interval} AS k USING ended AS e WHERE k.id = e.id
