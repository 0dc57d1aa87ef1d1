-- Functions of the views of one computation's state. They never raise: a view also shows rows of other
-- versions of the state's type, and one value that does not fit must not fail the whole query. (In a WHERE,
-- Postgres may try a cast on rows that another condition leaves out, so each function checks its input.)
--
-- A JSON number as an integer; NULL for anything else, and for what bigint cannot hold.
CREATE OR REPLACE FUNCTION {json_to_bigint}(value jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN jsonb_typeof(value) = 'number' THEN
        CASE
            WHEN value::numeric BETWEEN -9223372036854775808 AND 9223372036854775807
                AND value::numeric = trunc(value::numeric)
            THEN value::numeric::bigint
        END
END;
-- A JSON number; NULL for anything else.
CREATE OR REPLACE FUNCTION {json_to_double}(value jsonb) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_typeof(value) = 'number' THEN value::double precision END;
-- true or false; NULL for anything else.
CREATE OR REPLACE FUNCTION {json_to_boolean}(value jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_typeof(value) = 'boolean' THEN value::boolean END;
-- A time in JSON; without a zone it is UTC; NULL for anything else. A plain cast raises for the 30th of
-- February; a silent jsonpath does not, but knows no Z.
CREATE OR REPLACE FUNCTION {json_to_time}(value jsonb) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE
    WHEN value #>> '{{}}' ~ '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T' THEN
        (
            jsonb_path_query_first_tz(
                to_jsonb(
                    CASE
                        WHEN value #>> '{{}}' ~ '[+-][0-9]{{2}}:[0-9]{{2}}$' THEN value #>> '{{}}'
                        ELSE rtrim(value #>> '{{}}', 'Z') || '+00:00'
                    END
                ),
                '$.datetime()',
                silent => true
            ) #>> '{{}}'
        )::timestamptz
END;
-- The key of an entry of a MapState `field`; NULL for entries of anything else.
CREATE OR REPLACE FUNCTION {map_key}(entry text, field text) RETURNS jsonb
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN starts_with(entry, field || '/')
        AND substr(entry, length(field) + 2) ~ '^(".*"|\[.*\]|-?[1-9][0-9]*|0)$'
    THEN substr(entry, length(field) + 2)::jsonb
END;
-- The number of an entry of a ListState `field`; NULL for entries of anything else.
CREATE OR REPLACE FUNCTION {list_number}(entry text, field text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN starts_with(entry, field || '/') AND substr(entry, length(field) + 2) ~ '^[0-9]{{15}}$'
    THEN substr(entry, length(field) + 2)::bigint
END
