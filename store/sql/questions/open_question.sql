-- Opens the user's statement as a cursor of rows of texts, each with its first characters only. EXECUTE takes the
-- snapshot after it has locked all tables, so no bucket is dropped in between; DECLARE would take it before (I15).
DO $millwheel$
DECLARE
    answer refcursor := 'millwheel_answer';
    shortened text;
    names text;
    state text;
    message text;
    detail text;
    hint text;
BEGIN
    SELECT string_agg(format('left(c%s::text, %s)', i, current_setting('millwheel.characters')), ', ' ORDER BY i),
           string_agg('c' || i, ', ' ORDER BY i)
    INTO shortened, names
    FROM generate_series(1, current_setting('millwheel.columns')::integer) AS i;
    OPEN answer NO SCROLL FOR EXECUTE 'SELECT ARRAY[' || shortened || '] FROM ('
        || current_setting('millwheel.statement') || chr(10) || ') AS answer(' || names || ')';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        hint = PG_EXCEPTION_HINT;
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = left(message, 2000), DETAIL = left(detail, 2000),
        HINT = left(hint, 2000);
END
$millwheel$
