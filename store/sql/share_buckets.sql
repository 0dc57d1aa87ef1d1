-- Waits until nobody is opening or closing a bucket. Who closes one after this was read reads
-- the clock later than we do: so what we see is final for a while (decision 24).
SELECT set_config('lock_timeout', %(patience)s, true),
       pg_advisory_xact_lock_shared(hashtextextended(%(pipeline)s, 2))
