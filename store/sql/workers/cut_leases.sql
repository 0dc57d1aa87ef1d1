-- Shortens leases that end later than their length from now: after the clock has gone back, the lease of a
-- dead worker would last too long. It leaves a lease that is renewed at the same time alone, and one with a
-- locked row, because its worker is renewing it.
UPDATE {worker} AS w
SET lease_until = now() + w.lease_seconds * interval '1 second'
FROM (
    SELECT o.id FROM {worker} AS o
    WHERE o.lease_until > now() + (o.lease_seconds + 1) * interval '1 second'
    ORDER BY o.id
    FOR UPDATE SKIP LOCKED
) AS too_long
WHERE w.id = too_long.id
