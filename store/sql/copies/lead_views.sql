-- Executes statements that lock the names of readers, and waits no longer than {budget} ms for all locks together: a
-- waiting exclusive lock stops all new readers. At the end no reader can see the names, so what the successor has is
-- compared with the last that they have shown: both watermarks have a snapshot of their own, the former's first. That of
-- the former is the least of all intervals, or the time up to which any of them has fired timers.
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    statement text;
    former bigint;
BEGIN
    FOREACH statement IN ARRAY {statements}::text[] LOOP
        PERFORM set_config(
            'lock_timeout',
            greatest(1, {budget} - ceil(extract(epoch FROM clock_timestamp() - began) * 1000))::bigint::text, true
        );
        EXECUTE statement;
    END LOOP;
    IF {checks} THEN
        former := (
            SELECT greatest(
                min(l.low_watermark), max(l.input_watermark) FILTER (WHERE {with_timers} AND l.kind <> 'injector')
            )
            FROM {former_commits} AS l
        );
        IF (SELECT min(l.low_watermark) FROM {new_commits} AS l) >= former THEN
            RETURN;
        END IF;
        RAISE EXCEPTION 'behind' USING ERRCODE = 'MW001';
    END IF;
END
