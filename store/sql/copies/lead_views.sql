-- Executes statements that lock the names of readers, and waits no longer than {budget} ms for all locks together: a
-- waiting exclusive lock stops all new readers. From then on no reader can see the names, so what the successor has is
-- compared with the last that they have shown: all windows up to the time for which any interval of the former has fired
-- timers. While a busy former runs ahead of that, the successor gets {patience} ms to come as far. Each look has a snapshot
-- of its own.
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    locked timestamptz;
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
        locked := clock_timestamp();
        former := (
            SELECT greatest(min(l.low_watermark), max(l.input_watermark) FILTER (WHERE l.kind <> 'injector'))
            FROM {former_commits} AS l
        );
        LOOP
            IF (SELECT min(l.low_watermark) FROM {new_commits} AS l) >= former THEN
                RETURN;
            END IF;
            EXIT WHEN extract(epoch FROM clock_timestamp() - locked) * 1000 >= {patience};
            PERFORM pg_sleep(0.005);
        END LOOP;
        RAISE EXCEPTION 'behind' USING ERRCODE = 'MW001';
    END IF;
END
