-- Schemas of copies that were begun and never finished: a process was killed in between.
SELECT n.nspname::text
FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE p.proname = 'tee_sent' AND pg_catalog.to_regclass(quote_ident(n.nspname) || '.pipeline') IS NULL
  AND (SELECT count(*) FROM pg_catalog.pg_class AS c WHERE c.relnamespace = n.oid AND c.relkind = 'r') = 1
  AND pg_catalog.pg_has_role(p.proowner, 'USAGE')
ORDER BY 1
