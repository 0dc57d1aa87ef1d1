-- Lets only one session at a time deploy, migrate, change or drop the pipeline, until its transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('millwheel ' || %(pipeline)s::text, 0))
