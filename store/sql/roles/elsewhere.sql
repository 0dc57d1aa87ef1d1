-- The other databases of the server in which a role owns something or has a right.
SELECT DISTINCT d.datname::text
FROM pg_catalog.pg_shdepend AS s
JOIN pg_catalog.pg_database AS d ON d.oid = s.dbid
WHERE s.refclassid = 'pg_catalog.pg_authid'::regclass AND s.refobjid = %(role)s::regrole
  AND d.datname <> current_database()
ORDER BY 1
