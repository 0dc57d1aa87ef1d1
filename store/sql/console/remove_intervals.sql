-- Deletes the locked intervals of removed nodes, with all that makes them count: their logs keep no bucket
-- any more, and the next commit of an owner is refused. What they have written into numbered tables is kept.
WITH gone AS MATERIALIZED (
    SELECT k.id FROM {key_interval} AS k
    WHERE k.computation = ANY(%(computations)s::smallint[])
), written AS (
    INSERT INTO {ended_sender} (sender, table_name, rows)
    SELECT l.interval_id, t.key, t.value::bigint
    FROM gone AS g
    JOIN {latest_commits} AS l ON l.interval_id = g.id
    CROSS JOIN LATERAL jsonb_each_text(l.table_rows) AS t
), unfolded AS (
    DELETE FROM {fold} AS f USING gone AS g WHERE f.interval_id = g.id
), unsent AS (
    DELETE FROM {log} AS l USING gone AS g WHERE l.interval_id = g.id
), untaken AS (
    DELETE FROM {taken_record} AS t USING gone AS g WHERE t.interval_id = g.id
)
DELETE FROM {key_interval} AS k USING gone AS g WHERE k.id = g.id
