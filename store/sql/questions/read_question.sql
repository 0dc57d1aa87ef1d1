-- The next rows of the cursor, as JSON in a setting: as many as were asked for, or fewer if they are long.
DO $millwheel$
DECLARE
    answer refcursor := 'millwheel_answer';
    one text[];
    encoded text;
    chunk text[] := ARRAY[]::text[];
    size bigint := 0;
    most_rows integer := current_setting('millwheel.rows')::integer;
    most_bytes bigint := current_setting('millwheel.bytes')::bigint;
    state text;
    message text;
    detail text;
    hint text;
BEGIN
    WHILE cardinality(chunk) < most_rows AND size < most_bytes LOOP
        FETCH answer INTO one;
        EXIT WHEN NOT FOUND;
        encoded := to_json(one)::text;
        size := size + octet_length(encoded);
        chunk := chunk || encoded;
    END LOOP;
    PERFORM set_config('millwheel.answer', '[' || array_to_string(chunk, ',') || ']', true);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        hint = PG_EXCEPTION_HINT;
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = left(message, 2000), DETAIL = left(detail, 2000),
        HINT = left(hint, 2000);
END
$millwheel$
