-- Opens a new log for each claimed interval; a partition of a source keeps its own.
INSERT INTO {log} (id, interval_id, source, retired)
SELECT nextval(%(sequence)s::regclass), x, NULL, false
FROM unnest(%(interval_ids)s::bigint[]) AS x
WHERE NOT EXISTS (SELECT FROM {log} AS l WHERE l.interval_id = x AND l.source IS NOT NULL)
RETURNING interval_id, id
