-- Statements that let the readers of a table read a view of it, and see the view's schema.
WITH reader AS (
    SELECT a.grantee, NULL::name AS attname FROM pg_catalog.pg_class AS c, pg_catalog.aclexplode(c.relacl) AS a
    WHERE c.oid = pg_catalog.to_regclass(%(table)s) AND a.privilege_type = 'SELECT' AND a.grantee <> c.relowner
    UNION
    SELECT a.grantee, t.attname FROM pg_catalog.pg_attribute AS t, pg_catalog.aclexplode(t.attacl) AS a
    WHERE t.attrelid = pg_catalog.to_regclass(%(table)s) AND a.privilege_type = 'SELECT'
      AND t.attname = ANY(%(columns)s::text[])
), named AS (
    SELECT CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_catalog.pg_get_userbyid(r.grantee)) END AS role,
           CASE WHEN r.attname IS NULL THEN '' ELSE format(' (%%I)', r.attname) END AS part
    FROM reader AS r
)
SELECT format('GRANT SELECT%%s ON %%s TO %%s', n.part, %(view)s::text, n.role) FROM named AS n
UNION
SELECT format('GRANT USAGE ON SCHEMA %%I TO %%s', %(schema)s::text, n.role) FROM named AS n
ORDER BY 1
