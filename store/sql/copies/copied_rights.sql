-- The rights that roles have on a schema and on its relations, columns and functions, as statements for another schema. Only
-- a member of a role can give rights on relations that the role will make.
WITH origin AS (SELECT n.oid, n.nspacl FROM pg_catalog.pg_namespace AS n WHERE n.nspname = %(schema)s)
SELECT format('GRANT %%s ON SCHEMA %%I TO %%s', a.privilege_type, %(target)s::text, g.role)
FROM origin AS o, pg_catalog.aclexplode(o.nspacl) AS a,
LATERAL (
    SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END AS role
) AS g
UNION ALL
SELECT format(
    'GRANT %%s ON %%s %%I.%%I TO %%s', a.privilege_type, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
    %(target)s::text, c.relname, g.role
)
FROM origin AS o
JOIN pg_catalog.pg_class AS c ON c.relnamespace = o.oid AND c.relkind IN ('r', 'v', 'S'),
LATERAL pg_catalog.aclexplode(c.relacl) AS a,
LATERAL (
    SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END AS role
) AS g
UNION ALL
SELECT format(
    'GRANT %%s (%%I) ON TABLE %%I.%%I TO %%s', a.privilege_type, t.attname, %(target)s::text, c.relname, g.role
)
FROM origin AS o
JOIN pg_catalog.pg_class AS c ON c.relnamespace = o.oid AND c.relkind IN ('r', 'v')
JOIN pg_catalog.pg_attribute AS t ON t.attrelid = c.oid AND t.attacl IS NOT NULL,
LATERAL pg_catalog.aclexplode(t.attacl) AS a,
LATERAL (
    SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END AS role
) AS g
UNION ALL
SELECT format(
    'GRANT EXECUTE ON FUNCTION %%I.%%I(%%s) TO %%s', %(target)s::text, p.proname,
    pg_catalog.pg_get_function_identity_arguments(p.oid), g.role
)
FROM origin AS o
JOIN pg_catalog.pg_proc AS p ON p.pronamespace = o.oid AND p.prokind = 'f',
LATERAL pg_catalog.aclexplode(p.proacl) AS a,
LATERAL (
    SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END AS role
) AS g
UNION ALL
SELECT format(
    'ALTER DEFAULT PRIVILEGES FOR ROLE %%I IN SCHEMA %%I GRANT %%s ON %%s TO %%s',
    pg_catalog.pg_get_userbyid(d.defaclrole), %(target)s::text, a.privilege_type,
    CASE d.defaclobjtype WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'FUNCTIONS' ELSE 'TABLES' END, g.role
)
FROM origin AS o
JOIN pg_catalog.pg_default_acl AS d ON d.defaclnamespace = o.oid AND pg_catalog.pg_has_role(d.defaclrole, 'USAGE'),
LATERAL pg_catalog.aclexplode(d.defaclacl) AS a,
LATERAL (
    SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_catalog.pg_get_userbyid(a.grantee)) END AS role
) AS g
