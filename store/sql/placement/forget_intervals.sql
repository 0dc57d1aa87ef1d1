-- Deletes the parts of a merged interval. Chains are read by interval only, so theirs end here; their rows
-- are dropped with their buckets. What they have written into numbered tables is kept.
WITH written AS (
    INSERT INTO {ended_sender} (sender, table_name, rows)
    SELECT l.interval_id, t.key, t.value::bigint
    FROM {latest_commits} AS l
    CROSS JOIN LATERAL jsonb_each_text(l.table_rows) AS t
    WHERE l.interval_id = ANY(%(interval_ids)s::bigint[])
), unfolded AS (
    DELETE FROM {fold} WHERE interval_id = ANY(%(interval_ids)s::bigint[])
)
DELETE FROM {key_interval} WHERE id = ANY(%(interval_ids)s::bigint[])
