-- Serializes opening and closing of buckets, so that each change sees the newest bucket. It is a statement
-- of its own, so that the next statement has a later snapshot. The first setting holds for every lock of
-- the transaction, this one included.
SELECT set_config('lock_timeout', %(patience)s, true),
       pg_advisory_xact_lock(hashtextextended(%(pipeline)s, 2)),
       set_config('idle_in_transaction_session_timeout', '5s', true)
