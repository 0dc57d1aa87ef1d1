-- Server processes of the owners of these intervals, without the claimer: a claim waits for their share
-- locks. Owners with a valid lease are left out, unless the claim takes intervals from any owner.
SELECT w.backends::text
FROM {worker} AS w
WHERE w.id IN (SELECT k.owner FROM {key_interval} AS k WHERE k.id = ANY(%(interval_ids)s::bigint[]))
  AND w.id IS DISTINCT FROM %(owner)s::uuid
  AND (%(also_live)s::boolean OR w.stopped OR w.lease_until <= now())
