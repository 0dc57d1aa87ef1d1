-- For this transaction: how long it waits for a lock, and how long it may stand idle before the server ends
-- it, so that a process that is stopped in the middle of a change does not hold up others.
SELECT set_config('lock_timeout', %(lock)s, true),
       set_config('idle_in_transaction_session_timeout', %(idle)s, true)
