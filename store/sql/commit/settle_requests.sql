-- Writes what became of requests, in the commit that carries their effects. One that was withdrawn after its owner had
-- begun it is done all the same, and says so.
UPDATE {request} AS r
SET outcome = x.outcome, detail = x.detail, settled_at = now()
FROM jsonb_to_recordset(%(rows)s::jsonb) AS x (id bigint, outcome text, detail text)
WHERE r.id = x.id AND coalesce(r.outcome, 'withdrawn') = 'withdrawn'
