-- Shows other sessions that a copy is being made.
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended('millwheel tee ' || %(name)s::text, 4))
