-- No lease ends later than its length from now: after the clock went back, one of a worker that has died
-- would last for as long as that. A lease that was renewed while this statement began is not cut, nor is
-- one whose row is locked: its worker is just renewing it.
UPDATE {worker} AS w
SET lease_until = now() + w.lease_seconds * interval '1 second'
FROM (
    SELECT o.id FROM {worker} AS o
    WHERE o.lease_until > now() + (o.lease_seconds + 1) * interval '1 second'
    ORDER BY o.id
    FOR UPDATE SKIP LOCKED
) AS too_long
WHERE w.id = too_long.id
