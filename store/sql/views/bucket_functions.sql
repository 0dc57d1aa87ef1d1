-- The tables of buckets, made and dropped with the owner's rights: a worker decides when, and owns none of them. (The owner
-- of a table can attach code to it that runs with the rights of all who read or change it, decision 61.)
--
-- Workers of code before version 0018 write numbers of logs to seen_record, where nothing looks for them since then: their
-- commits are refused. (Ids of users may look like such numbers, and have buckets of their own.)
--
-- Makes the tables of a bucket that has a row. CREATE + INHERIT, not PARTITION OF, which would wait for readers of the
-- parents (decision 1). Arrays get no statistics: to read a sample of them takes seconds, again each time that the bucket has
-- grown by a tenth, and no statement chooses rows by what is in them.
CREATE OR REPLACE FUNCTION {make_bucket}(bucket_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $make$
DECLARE
    part record;
    arrays text;
BEGIN
    FOR part IN
        SELECT
            p.parent, p.parent || '_' || b.id AS name, p.key, p.more,
            CASE WHEN p.parent = 'seen_record' AND b.family <> 'named' THEN
                'CONSTRAINT workers_of_older_code_have_to_be_restarted '
                'CHECK (id >= ''80000000-0000-0000-0000-000000000000'')'
            END AS refusal
        FROM {bucket} AS b
        JOIN (VALUES
            ('commit_record', 'PRIMARY KEY (interval_id, n)', NULL),
            ('state_change', NULL, '(interval_id, n)'),
            ('timer_change', NULL, '(interval_id, n)'),
            ('production', 'PRIMARY KEY (log, last)', NULL),
            ('straggler', 'PRIMARY KEY (log, seq)', '(origin, place) WHERE origin <> 0'),
            ('seen_record', 'PRIMARY KEY (computation, id, slot)', NULL),
            ('seen_run', 'PRIMARY KEY (computation, log, last)', NULL)
        ) AS p (parent, key, more) ON b.family = 'time' OR p.parent IN ('seen_record', 'seen_run')
        WHERE b.id = bucket_id
    LOOP
        EXECUTE format(
            'CREATE TABLE %1$I.%2$I (%3$s)', {schema_name}, part.name,
            concat_ws(', ', format('LIKE %I.%I INCLUDING STORAGE', {schema_name}, part.parent), part.key,
                part.refusal)
        );
        IF part.more IS NOT NULL THEN
            EXECUTE format('CREATE INDEX ON %I.%I %s', {schema_name}, part.name, part.more);
        END IF;
        SELECT string_agg(format('ALTER COLUMN %I SET STATISTICS 0', a.attname), ', ') INTO arrays
        FROM pg_attribute AS a
        JOIN pg_type AS t ON t.oid = a.atttypid AND t.typcategory = 'A'
        WHERE a.attrelid = format('%I.%I', {schema_name}, part.name)::regclass AND a.attnum > 0;
        IF arrays IS NOT NULL THEN
            EXECUTE format('ALTER TABLE %I.%I %s', {schema_name}, part.name, arrays);
        END IF;
        EXECUTE format('ALTER TABLE %1$I.%2$I INHERIT %1$I.%3$I', {schema_name}, part.name, part.parent);
    END LOOP;
END
$make$;
-- Drops a bucket: its row, and its tables, which the caller has locked and found unused.
CREATE OR REPLACE FUNCTION {drop_bucket}(bucket_id bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $drop$
DECLARE
    name text;
BEGIN
    FOR name IN
        WITH gone AS (DELETE FROM {bucket} AS b WHERE b.id = bucket_id RETURNING b.id, b.family)
        SELECT p.parent || '_' || g.id
        FROM gone AS g
        JOIN unnest(ARRAY[
            'commit_record', 'state_change', 'timer_change', 'production', 'straggler', 'seen_record', 'seen_run'
        ]) AS p (parent) ON g.family = 'time' OR p.parent IN ('seen_record', 'seen_run')
    LOOP
        EXECUTE format('DROP TABLE %I.%I', {schema_name}, name);
    END LOOP;
END
$drop$;
REVOKE EXECUTE ON FUNCTION {make_bucket} FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION {drop_bucket} FROM PUBLIC;
COMMENT ON FUNCTION {make_bucket} IS 'Makes the tables of a bucket; for workers';
COMMENT ON FUNCTION {drop_bucket} IS 'Drops a bucket with its tables; for workers'
