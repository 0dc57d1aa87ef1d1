-- Notes on dead letters that they have failed again.
UPDATE {dead_letter} AS d
SET attempts = d.attempts + x.attempts, error = x.error, traceback = x.traceback, stamp = x.stamp
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (
    id bigint, attempts integer, error text, traceback text, stamp bigint
)
WHERE d.id = x.id
