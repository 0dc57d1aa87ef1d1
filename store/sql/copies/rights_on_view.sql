-- The rights of roles on a view and its columns, as statements that give them again.
SELECT format(
    'GRANT %%s%%s ON %%s TO %%s%%s', a.privilege_type, g.part, %(relation)s::text, g.role,
    CASE WHEN a.is_grantable AND a.grantee <> 0 THEN ' WITH GRANT OPTION' ELSE '' END
)
FROM (
    SELECT c.relacl AS acl, NULL::name AS attname FROM pg_catalog.pg_class AS c
    WHERE c.oid = pg_catalog.to_regclass(%(relation)s)
    UNION ALL
    SELECT t.attacl, t.attname FROM pg_catalog.pg_attribute AS t
    WHERE t.attrelid = pg_catalog.to_regclass(%(relation)s) AND t.attname = ANY(%(columns)s::text[])
) AS o,
LATERAL pg_catalog.aclexplode(o.acl) AS a,
LATERAL (
    SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END AS role,
           CASE WHEN o.attname IS NULL THEN '' ELSE format(' (%%I)', o.attname) END AS part
) AS g
ORDER BY 1
