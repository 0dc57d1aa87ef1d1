-- What a server says of itself to any login, as JSON: its version and settings, the login's limits and rights, and
-- names by which managed services are recognised. A setting is given as it is for a new session of this login.
SELECT jsonb_build_object(
    'version', current_setting('server_version'),
    'version_number', current_setting('server_version_num')::integer,
    'login', current_user,
    'database', current_database(),
    'is_superuser', r.rolsuper,
    'is_standby', pg_is_in_recovery(),
    'encoding', pg_encoding_to_char(d.encoding),
    'may_make_schemas', has_database_privilege(d.oid, 'CREATE'),
    'open_schemas', (
        SELECT coalesce(jsonb_agg(n.nspname ORDER BY n.nspname), '[]')
        FROM pg_namespace AS n
        WHERE n.nspname !~ '^(pg_|information_schema$)'
          AND has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE')
    ),
    'connections', (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usesysid IS NOT NULL),
    'login_connections', (SELECT count(*) FROM pg_stat_activity AS a WHERE a.usesysid = r.oid),
    'database_connections', (SELECT count(*) FROM pg_stat_activity AS a WHERE a.datid = d.oid),
    'login_limit', r.rolconnlimit,
    'database_limit', d.datconnlimit,
    'tls', (SELECT s.version FROM pg_stat_ssl AS s WHERE s.pid = pg_backend_pid()),
    'standbys', (SELECT count(*) FROM pg_stat_replication),
    'settings', (
        SELECT jsonb_object_agg(
            s.name, jsonb_build_object('value', s.reset_val, 'unit', coalesce(s.unit, ''), 'source', s.source)
        )
        FROM pg_settings AS s
        WHERE s.name = ANY(%(settings)s::text[])
    ),
    'parameters', (
        SELECT coalesce(jsonb_agg(s.name ORDER BY s.name), '[]')
        FROM pg_settings AS s
        WHERE s.name ~ '^(rds|apg|aurora|cloudsql|azure|neon|supabase|supautils)[._]'
    ),
    'roles', (
        SELECT coalesce(jsonb_agg(m.rolname ORDER BY m.rolname), '[]')
        FROM pg_roles AS m
        WHERE m.rolname IN (
            'rds_superuser', 'cloudsqlsuperuser', 'azure_pg_admin', 'supabase_admin', 'neon_superuser'
        )
    ),
    'has_aurora_version', to_regproc('aurora_version') IS NOT NULL
)::text
FROM pg_roles AS r
CROSS JOIN pg_database AS d
WHERE r.rolname = current_user AND d.datname = current_database()
