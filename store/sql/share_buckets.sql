-- Waits until no session opens or closes a bucket. A later close reads the clock later, so the buckets read
-- now are final for a while (decision 24).
SELECT set_config('lock_timeout', %(patience)s, true),
       pg_advisory_xact_lock_shared(hashtextextended(%(pipeline)s, 2))
