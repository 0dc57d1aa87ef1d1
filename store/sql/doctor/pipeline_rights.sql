-- What a worker's login lacks in the schema of a pipeline that exists. A bucket is made by a function with the
-- owner's rights, so the login need not own anything.
SELECT x.lacking
FROM (
    SELECT 'USAGE on the schema' AS lacking, has_schema_privilege(n.oid, 'USAGE') AS is_there
    FROM pg_namespace AS n
    WHERE n.nspname = %(schema)s
    UNION ALL
    SELECT 'CREATE on the schema', has_schema_privilege(n.oid, 'CREATE')
    FROM pg_namespace AS n
    WHERE n.nspname = %(schema)s
    UNION ALL
    SELECT r.name || ' on ' || c.relname, has_table_privilege(c.oid, r.name)
    FROM pg_class AS c
    CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE')) AS r (name)
    WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace AS n WHERE n.nspname = %(schema)s)
      AND c.relname IN ('worker', 'key_interval', 'commit_record', 'incarnation')
    UNION ALL
    SELECT 'EXECUTE on ' || p.proname, has_function_privilege(p.oid, 'EXECUTE')
    FROM pg_proc AS p
    WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace AS n WHERE n.nspname = %(schema)s)
      AND p.proname IN ('make_bucket', 'drop_bucket')
) AS x
WHERE NOT x.is_there
