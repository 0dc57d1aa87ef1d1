-- Takes a lock of this session for some work. A lock of a login that cannot write to the pipeline does not count: any login
-- of the database may hold it. %(key)s is the name of the work, %(schema)s the pipeline.
WITH k AS MATERIALIZED (SELECT hashtextextended(%(key)s, 0) AS key)
SELECT pg_try_advisory_lock(k.key) OR EXISTS (
    SELECT FROM pg_locks AS l
    JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
      AND l.classid::bigint << 32 | l.objid::bigint = k.key
      AND NOT has_table_privilege(a.usesysid, format('%%I.spark_query', %(schema)s::text), 'UPDATE')
)
FROM k
