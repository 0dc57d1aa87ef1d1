-- Server processes of those who own these intervals, other than the claimer's: their share
-- locks are what a claim waits for. Whose lease lasts is left alone, unless the claim is meant
-- for whatever owner there is.
SELECT w.backends::text
FROM {worker} AS w
WHERE w.id IN (SELECT k.owner FROM {key_interval} AS k WHERE k.id = ANY(%(interval_ids)s::bigint[]))
  AND w.id IS DISTINCT FROM %(owner)s::uuid
  AND (%(also_live)s::boolean OR w.stopped OR w.lease_until <= now())
