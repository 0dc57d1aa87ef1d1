-- Sends records into a stream with an Inbox, in the caller's transaction: they arrive if it commits, and only then.
-- The caller needs the right to execute these two functions, and no right on a table (docs/howto/connect/sql-and-http.md).
--
-- Takes some records, all or none; says of each whether it is new. The others have ids that were sent before, with
-- the same values. `ids` and `at` may be NULL as a whole or have NULLs in them. `batch` is an id of the whole: a repeat
-- of the same records under it has no second effect.
--
-- Most calls have one record, and it is looked at and inserted without queries over arrays: with them a call takes
-- three times as long.
CREATE OR REPLACE FUNCTION {send_all}(
    stream text, records jsonb[], ids text[] DEFAULT NULL, at timestamptz[] DEFAULT NULL,
    batch text DEFAULT NULL
) RETURNS boolean[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $send$
#variable_conflict use_column
DECLARE
    target {inbox}%ROWTYPE;
    is_one boolean := batch IS NULL AND array_dims(records) = '[1:1]' AND records[1] IS NOT NULL
        AND (ids IS NULL OR array_dims(ids) = '[1:1]') AND (at IS NULL OR array_dims(at) = '[1:1]');
    is_large boolean;
    is_endless boolean;
    transaction_id xid8;
    accepted boolean[];
    offender text;
    whole bytea;
BEGIN
    SELECT i.* INTO target FROM {inbox} AS i
    JOIN {stream} AS s ON s.id = i.stream
    JOIN {key_interval} AS k ON k.id = i.interval_id
    WHERE s.name = send_all.stream;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stream "%" takes no records', send_all.stream
            USING ERRCODE = 'undefined_object',
            HINT = 'Inject an Inbox() into it, and start the pipeline once.';
    END IF;
    IF array_position(records, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'record % is NULL', array_position(records, NULL)
            USING ERRCODE = 'null_value_not_allowed', HINT = 'The JSON value null is ''null''.';
    END IF;
    IF is_one THEN
        is_large := octet_length(records[1]::text) > 8388608;
        is_endless := NOT isfinite(at[1]);
    ELSE
        is_large := EXISTS (SELECT FROM unnest(records) AS r WHERE octet_length(r::text) > 8388608);
        is_endless := EXISTS (SELECT FROM unnest(at) AS t WHERE NOT isfinite(t));
    END IF;
    IF is_large THEN
        RAISE EXCEPTION 'a record has more than 8 MiB' USING ERRCODE = 'program_limit_exceeded';
    END IF;
    IF batch IS NOT NULL AND cardinality(records) = 0 THEN
        RETURN ARRAY[]::boolean[];
    END IF;
    IF cardinality(ids) <> cardinality(records) OR cardinality(at) <> cardinality(records) THEN
        RAISE EXCEPTION 'there are % records, % ids and % times',
            cardinality(records), cardinality(ids), cardinality(at)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF target.requires_id AND batch IS NULL AND (ids IS NULL OR array_position(ids, NULL) IS NOT NULL) THEN
        RAISE EXCEPTION 'stream "%" takes no records without an id', send_all.stream
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF is_endless THEN
        RAISE EXCEPTION 'a time may not be infinite' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The transaction gets its id before the first record gets its time: take_sent.sql relies on it.
    transaction_id := pg_current_xact_id();
    IF batch IS NOT NULL THEN
        SELECT sha256(convert_to(string_agg(o.value::text, E'\n' ORDER BY o.place), 'UTF8')) INTO whole
        FROM unnest(records) WITH ORDINALITY AS o (value, place);
        INSERT INTO {sent_id} (stream, id, digest, sent_at)
        VALUES (target.stream, batch, whole, clock_timestamp())
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            PERFORM FROM {sent_id} AS i
            WHERE i.stream = target.stream AND i.id = batch AND i.digest = whole;
            IF FOUND THEN
                RETURN array_fill(false, ARRAY[cardinality(records)]);
            END IF;
            RAISE EXCEPTION 'id "%" was sent to stream "%" with other records', batch, send_all.stream
                USING ERRCODE = 'unique_violation',
                HINT = 'An id names one batch. Give the new batch an id of its own.';
        END IF;
    END IF;
    IF is_one THEN
        accepted := ARRAY[true];
        IF ids[1] IS NOT NULL THEN
            INSERT INTO {sent_id} (stream, id, digest, sent_at)
            VALUES (
                target.stream, ids[1], sha256(convert_to(records[1]::text, 'UTF8')), clock_timestamp()
            )
            ON CONFLICT DO NOTHING;
            accepted := ARRAY[FOUND];
        END IF;
        IF accepted[1] THEN
            INSERT INTO {sent_record} (stream, value, ts)
            VALUES (
                target.stream, records[1]::text,
                (extract(epoch FROM coalesce(at[1], clock_timestamp())) * 1000000)::bigint
            );
        END IF;
    ELSE
        WITH offered AS (
            SELECT o.* FROM unnest(records, ids, at) WITH ORDINALITY AS o (value, id, at, place)
        ), named AS (
            SELECT DISTINCT ON (o.id) o.* FROM offered AS o WHERE o.id IS NOT NULL ORDER BY o.id, o.place
        ), remembered AS (
            INSERT INTO {sent_id} (stream, id, digest, sent_at)
            SELECT target.stream, n.id, sha256(convert_to(n.value::text, 'UTF8')), clock_timestamp()
            FROM named AS n
            ORDER BY n.id
            ON CONFLICT DO NOTHING
            RETURNING id
        ), fresh AS (
            SELECT o.*, o.id IS NULL
                OR o.place IN (SELECT n.place FROM named AS n JOIN remembered AS r ON r.id = n.id) AS is_new
            FROM offered AS o
        ), stored AS (
            INSERT INTO {sent_record} (stream, value, ts)
            SELECT
                target.stream, f.value::text,
                (extract(epoch FROM coalesce(f.at, clock_timestamp())) * 1000000)::bigint
            FROM fresh AS f
            WHERE f.is_new
            ORDER BY f.place
        )
        SELECT array_agg(f.is_new ORDER BY f.place) INTO accepted FROM fresh AS f;
    END IF;
    IF false = ANY (accepted) THEN
        SELECT o.id INTO offender FROM unnest(records, ids) AS o (value, id)
        JOIN {sent_id} AS i ON i.stream = target.stream AND i.id = o.id
        WHERE i.digest <> sha256(convert_to(o.value::text, 'UTF8'))
        LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'id "%" was sent to stream "%" with another value', offender, send_all.stream
                USING ERRCODE = 'unique_violation',
                HINT = 'An id names one record. Give the new record an id of its own.';
        END IF;
    END IF;
    RETURN coalesce(accepted, ARRAY[]::boolean[]);
END
$send$;
-- Takes one record; false: its id was sent before, with the same value.
CREATE OR REPLACE FUNCTION {send}(
    stream text, value jsonb, id text DEFAULT NULL, at timestamptz DEFAULT NULL
) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN ({send_all}(
    stream, ARRAY[value], CASE WHEN id IS NOT NULL THEN ARRAY[id] END,
    CASE WHEN at IS NOT NULL THEN ARRAY[at] END
))[1];
-- Number of committed records of a stream that its injector has not taken yet, up to a limit.
CREATE OR REPLACE FUNCTION {count_waiting}(stream text, most bigint DEFAULT 100000) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(*) FROM (
        SELECT FROM {sent_record} AS r
        WHERE r.stream = (SELECT s.id FROM {stream} AS s WHERE s.name = count_waiting.stream)
        LIMIT most
    ) AS waiting;
END;
REVOKE EXECUTE ON FUNCTION {send_all} FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION {send} FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION {count_waiting} FROM PUBLIC;
COMMENT ON FUNCTION {send} IS
    'Sends a record into a stream, in this transaction; false: its id was sent before';
COMMENT ON FUNCTION {send_all} IS
    'Sends records into a stream, in this transaction; says of each whether it is new';
COMMENT ON FUNCTION {count_waiting} IS
    'Number of records of a stream that were sent and not taken yet, up to a limit'
