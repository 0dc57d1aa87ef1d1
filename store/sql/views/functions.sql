-- Microseconds since the epoch to a time; the ends of time become -infinity and infinity.
CREATE OR REPLACE FUNCTION {micros_to_time}(micros bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN micros <= -62135510400000000 THEN '-infinity'::timestamptz
    WHEN micros >= 253402128000000000 THEN 'infinity'::timestamptz
    -- In two parts: Postgres multiplies intervals as floats, exact up to 2^53.
    ELSE 'epoch'::timestamptz
        + micros / 1000000 * interval '1 second' + micros % 1000000 * interval '1 microsecond'
END;
-- The id of a production: its log and its place in it, 8 bytes each.
CREATE OR REPLACE FUNCTION {record_id}(log bigint, seq bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (lpad(to_hex(log), 16, '0') || lpad(to_hex(seq), 16, '0'))::uuid;
-- Deletes requests that were settled long ago. With the owner's rights: neither workers nor operators may delete others.
CREATE OR REPLACE FUNCTION {forget_requests}() RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM {request} WHERE settled_at < now() - interval '30 days'
$$;
REVOKE EXECUTE ON FUNCTION {forget_requests} FROM PUBLIC;
COMMENT ON FUNCTION {forget_requests}() IS 'Deletes requests of operators that were settled 30 days ago'
