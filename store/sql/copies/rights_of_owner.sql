-- Statements that let the owner of a view read a table, if it may not yet.
SELECT format('GRANT USAGE ON SCHEMA %%I TO %%I', n.nspname, %(owner)s::text)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%(table)s)
  AND NOT pg_catalog.has_schema_privilege(%(owner)s, n.oid, 'USAGE')
UNION ALL
SELECT format('GRANT SELECT ON %%s TO %%I', %(table)s::text, %(owner)s::text)
WHERE NOT pg_catalog.has_table_privilege(%(owner)s, pg_catalog.to_regclass(%(table)s), 'SELECT')
