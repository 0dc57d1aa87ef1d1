-- The time by the server's clock.
SELECT clock_timestamp()
