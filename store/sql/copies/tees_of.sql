-- The copies to which records of a pipeline's inboxes are sent too.
SELECT t.tgname::text AS trigger, n.nspname::text AS copy
FROM pg_catalog.pg_trigger AS t
JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid AND p.proname = 'tee_sent'
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE t.tgrelid = pg_catalog.to_regclass(%(table)s)
ORDER BY 2
