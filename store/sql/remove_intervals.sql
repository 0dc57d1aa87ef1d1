-- Deletes the locked intervals of removed nodes, with all that makes them count: their logs keep no bucket
-- any more, and the next commit of an owner is refused.
WITH gone AS MATERIALIZED (
    SELECT k.id FROM {key_interval} AS k
    WHERE k.computation = ANY(%(computations)s::smallint[])
), unfolded AS (
    DELETE FROM {fold} AS f USING gone AS g WHERE f.interval_id = g.id
), unsent AS (
    DELETE FROM {log} AS l USING gone AS g WHERE l.interval_id = g.id
), untaken AS (
    DELETE FROM {taken_record} AS t USING gone AS g WHERE t.interval_id = g.id
)
DELETE FROM {key_interval} AS k USING gone AS g WHERE k.id = g.id
