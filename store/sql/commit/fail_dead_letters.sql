-- Notes on dead letters that they have failed again. One that has waited in a parked key stops the key now.
UPDATE {dead_letter} AS d
SET attempts = d.attempts + x.attempts, error = x.error, traceback = x.traceback, stamp = x.stamp,
    parked = CASE WHEN d.parked IS NOT NULL THEN 'failed' END
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (
    id bigint, attempts integer, error text, traceback text, stamp bigint
)
WHERE d.id = x.id
