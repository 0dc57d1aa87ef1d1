-- Part of a trial that is rolled back.
CREATE FUNCTION {function}() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$
