-- What this login, or a role that it may take, may do beyond reading the pipelines, in words.
WITH held AS (
    SELECT r.oid, r.rolname::text AS name, r.rolsuper, r.rolcreaterole, r.rolreplication
    FROM pg_catalog.pg_roles AS r
    WHERE pg_catalog.pg_has_role(current_user, r.oid, 'MEMBER')
), relation AS (
    SELECT c.oid, c.relowner, c.relacl, c.relname
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = ANY (%(pipelines)s) AND c.relkind IN ('r', 'p', 'v')
), granted AS (
    SELECT r.oid, a.grantee, a.privilege_type FROM relation AS r CROSS JOIN pg_catalog.aclexplode(r.relacl) AS a
    UNION ALL
    SELECT r.oid, a.grantee, a.privilege_type
    FROM relation AS r
    JOIN pg_catalog.pg_attribute AS t ON t.attrelid = r.oid AND t.attacl IS NOT NULL
    CROSS JOIN pg_catalog.aclexplode(t.attacl) AS a
)
SELECT f.words
FROM (
    SELECT 1, 'it is a superuser' FROM held AS h WHERE h.rolsuper
    UNION ALL
    SELECT 2, 'it may make roles, or replicate' FROM held AS h WHERE h.rolcreaterole OR h.rolreplication
    UNION ALL
    SELECT 3, 'it has the rights of ' || h.name
    FROM held AS h
    WHERE h.name LIKE 'pg\_%%' AND h.name NOT IN (
        'pg_monitor', 'pg_read_all_settings', 'pg_read_all_stats', 'pg_stat_scan_tables', 'pg_use_reserved_connections'
    )
    UNION ALL
    SELECT 4, 'it may own what ' || h.name || ' owns, as ' || r.oid::regclass::text
    FROM relation AS r
    JOIN held AS h ON h.oid = r.relowner
    UNION ALL
    SELECT 5, 'it may change ' || g.oid::regclass::text
    FROM granted AS g
    LEFT JOIN held AS h ON h.oid = g.grantee
    WHERE (h.oid IS NOT NULL OR g.grantee = 0) AND g.privilege_type NOT IN ('SELECT', 'REFERENCES', 'TRIGGER')
    UNION ALL
    SELECT 6, 'it may read the secret of the workers, ' || r.oid::regclass::text
    FROM relation AS r
    JOIN granted AS g ON g.oid = r.oid AND g.privilege_type = 'SELECT'
    LEFT JOIN held AS h ON h.oid = g.grantee
    WHERE r.relname = 'peer_secret' AND (h.oid IS NOT NULL OR g.grantee = 0)
) AS f (place, words)
ORDER BY f.place, f.words
LIMIT 1
