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
-- A JSON number; NULL for anything else, and for what a double precision cannot hold.
CREATE OR REPLACE FUNCTION {json_to_double}(value jsonb) RETURNS double precision
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN jsonb_typeof(value) = 'number' THEN
        CASE
            WHEN value::numeric = 0 THEN 0
            WHEN abs(value::numeric) BETWEEN 5e-324 AND 1.7976931348623157e308 THEN value::double precision
        END
END;
-- true or false; NULL for anything else.
CREATE OR REPLACE FUNCTION {json_to_boolean}(value jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_typeof(value) = 'boolean' THEN value::boolean END;
-- A time in JSON; without a zone it is UTC; NULL for anything else. A plain cast raises for the 30th of
-- February; a silent jsonpath does not, but knows no Z.
CREATE OR REPLACE FUNCTION {json_to_time}(value jsonb) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE
    WHEN value #>> '{{}}' ~ '^(?!0000)[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T' THEN
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
-- A date in JSON; NULL for anything else, such as the 30th of February or the year 0.
CREATE OR REPLACE FUNCTION {json_to_date}(value jsonb) RETURNS date
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN value #>> '{{}}' ~ '^(?!0000)[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}$'
    THEN (jsonb_path_query_first(value, '$.datetime()', silent => true) #>> '{{}}')::date
END;
-- A number in JSON, or one as text, as decimals are stored; NULL for anything else, such as "NaN".
CREATE OR REPLACE FUNCTION {json_to_numeric}(value jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN jsonb_typeof(value) = 'number' THEN value::numeric
    WHEN length(value #>> '{{}}') <= 1000 AND value #>> '{{}}' ~ '^[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{{1,3}})?$'
    THEN (value #>> '{{}}')::numeric
END;
-- A UUID in JSON; NULL for anything else.
CREATE OR REPLACE FUNCTION {json_to_uuid}(value jsonb) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN value #>> '{{}}' ~* '^[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}$' THEN (value #>> '{{}}')::uuid
END;
-- Bytes in JSON, which are base64; NULL for anything else.
CREATE OR REPLACE FUNCTION {json_to_bytea}(value jsonb) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN jsonb_typeof(value) = 'string'
        AND value #>> '{{}}' ~ '^([A-Za-z0-9+/]{{4}})*([A-Za-z0-9+/]{{2}}==|[A-Za-z0-9+/]{{3}}=)?$'
    THEN decode(value #>> '{{}}', 'base64')
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
