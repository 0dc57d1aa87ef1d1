-- The plan of a user's statement, as far as it has room: a constant in it may have a gigabyte. Errors are shortened
-- for the same reason.
DO $millwheel$
DECLARE
    line text;
    plan text := '';
    state text;
    message text;
    detail text;
    hint text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN ' || current_setting('millwheel.statement') LOOP
        plan := plan || left(line, 500) || chr(10);
        EXIT WHEN length(plan) > 20000;
    END LOOP;
    PERFORM set_config('millwheel.answer', plan, true);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        hint = PG_EXCEPTION_HINT;
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = left(message, 2000), DETAIL = left(detail, 2000),
        HINT = left(hint, 2000);
END
$millwheel$
