-- Bounds a trial, which is rolled back.
SELECT set_config('statement_timeout', '10s', true), set_config('lock_timeout', '2s', true)
