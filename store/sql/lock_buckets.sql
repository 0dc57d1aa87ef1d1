-- Opening and closing buckets one after the other: each looks at the newest one only when
-- nobody else is changing it. A statement of its own, so that the next has a later snapshot. What is
-- set first holds for every lock of the transaction, this one as well.
SELECT set_config('lock_timeout', %(patience)s, true),
       pg_advisory_xact_lock(hashtextextended(%(pipeline)s, 2)),
       set_config('idle_in_transaction_session_timeout', '5s', true)
