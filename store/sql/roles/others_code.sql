-- A table, view or function of somebody who is no superuser, if this login may run programs or touch files on the server.
SELECT f.name, f.owner
FROM (
    SELECT c.oid::regclass::text, o.rolname::text
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_roles AS o ON o.oid = c.relowner
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT o.rolsuper
    UNION ALL
    SELECT p.oid::regprocedure::text, o.rolname::text
    FROM pg_catalog.pg_proc AS p
    JOIN pg_catalog.pg_roles AS o ON o.oid = p.proowner
    WHERE NOT o.rolsuper
) AS f (name, owner)
WHERE pg_catalog.pg_has_role(current_user, 'pg_execute_server_program', 'MEMBER')
   OR pg_catalog.pg_has_role(current_user, 'pg_write_server_files', 'MEMBER')
   OR pg_catalog.pg_has_role(current_user, 'pg_read_server_files', 'MEMBER')
LIMIT 1
