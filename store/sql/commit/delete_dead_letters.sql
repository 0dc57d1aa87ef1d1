-- Deletes the dead letters that were processed at last, in the commit that carries their effects.
DELETE FROM {dead_letter} AS d
USING jsonb_to_recordset(%(rows)s::jsonb) AS x (id bigint)
WHERE d.id = x.id
