-- The transactions whose effects this transaction sees.
SELECT pg_current_snapshot()::text
