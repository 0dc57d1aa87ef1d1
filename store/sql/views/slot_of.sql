-- The slot of a key, so that SQL can use the primary keys, which begin with it: the first 16 bits of XXH3-64 of the
-- key's compact JSON, as in millwheel/core/codec.py. The algorithm is that of the XXH3 specification, with its default
-- secret and seed 0, for up to 240 bytes. Postgres has no unsigned integers: a 64-bit word is a bigint with the same
-- bits, and sums and products are taken as numeric.
--
-- The word of 8 bytes at a place, little-endian.
CREATE OR REPLACE FUNCTION {xxh3_word}(bytes bytea, place integer) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN get_byte(bytes, place)::bigint | (get_byte(bytes, place + 1)::bigint << 8)
    | (get_byte(bytes, place + 2)::bigint << 16) | (get_byte(bytes, place + 3)::bigint << 24)
    | (get_byte(bytes, place + 4)::bigint << 32) | (get_byte(bytes, place + 5)::bigint << 40)
    | (get_byte(bytes, place + 6)::bigint << 48) | (get_byte(bytes, place + 7)::bigint << 56);
-- The number that the bits of a word stand for.
CREATE OR REPLACE FUNCTION {xxh3_number}(word bigint) RETURNS numeric
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE WHEN word < 0 THEN word::numeric + 18446744073709551616 ELSE word::numeric END;
-- The last 64 bits of a number.
CREATE OR REPLACE FUNCTION {xxh3_low}(number numeric) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN ((number + 9223372036854775808) % 18446744073709551616 - 9223372036854775808)::bigint;
-- The bits of a word, shifted right.
CREATE OR REPLACE FUNCTION {xxh3_shift}(word bigint, bits integer) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN (word >> bits) & ((1::bigint << (64 - bits)) - 1);
-- The two halves of the product of two words, folded into one.
CREATE OR REPLACE FUNCTION {xxh3_fold}(a bigint, b bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    product CONSTANT numeric := {xxh3_number}(a) * {xxh3_number}(b);
BEGIN
    RETURN {xxh3_low}(product) # {xxh3_low}(div(product, 18446744073709551616));
END
$$;
-- 16 bytes, mixed with 16 of the secret; as a number, to be added up.
CREATE OR REPLACE FUNCTION {xxh3_mix}(bytes bytea, place integer, secret bytea, secret_place integer)
RETURNS numeric
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN {xxh3_number}(
    {xxh3_fold}(
        {xxh3_word}(bytes, place) # {xxh3_word}(secret, secret_place),
        {xxh3_word}(bytes, place + 8) # {xxh3_word}(secret, secret_place + 8)
    )
);
-- The last steps, which spread each bit over all others.
CREATE OR REPLACE FUNCTION {xxh3_spread}(total numeric) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    word bigint := {xxh3_low}(total);
BEGIN
    word := word # {xxh3_shift}(word, 37);
    word := {xxh3_low}({xxh3_number}(word) * 1609587791953885689);
    RETURN word # {xxh3_shift}(word, 32);
END
$$;
CREATE OR REPLACE FUNCTION {slot_of_text}(key text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    secret CONSTANT bytea :=
        '\xb8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221'
        'b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8'
        'a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb'
        '170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e';
    bytes CONSTANT bytea := convert_to(key, 'UTF8');
    size CONSTANT integer := length(bytes);
    first bigint := 0;
    last bigint := 0;
    total numeric;
    word bigint;
BEGIN
    -- Each expression is made ready once a transaction, so that loops over small ones are faster than few large ones.
    IF size <= 3 THEN
        word := (get_byte(bytes, 0) << 16) | (get_byte(bytes, size / 2) << 24) | get_byte(bytes, size - 1) | (size << 8);
        word := (word & 4294967295) # 2267503259;
        word := {xxh3_low}({xxh3_number}(word) * 14029467366897019727);
        word := word # {xxh3_shift}(word, 29);
        word := {xxh3_low}({xxh3_number}(word) * 1609587929392839161);
        word := word # {xxh3_shift}(word, 32);
    ELSIF size <= 8 THEN
        FOR place IN REVERSE 3 .. 0 LOOP
            first := (first << 8) | get_byte(bytes, place);
            last := (last << 8) | get_byte(bytes, size - 4 + place);
        END LOOP;
        word := ((first << 32) + last) # -4090762196417718878;
        word := word # ((word << 49) | {xxh3_shift}(word, 15)) # ((word << 24) | {xxh3_shift}(word, 40));
        word := {xxh3_low}({xxh3_number}(word) * 11507291218515648293);
        word := word # ({xxh3_shift}(word, 35) + size);
        word := {xxh3_low}({xxh3_number}(word) * 11507291218515648293);
        word := word # {xxh3_shift}(word, 28);
    ELSIF size <= 16 THEN
        FOR place IN REVERSE 7 .. 0 LOOP
            first := (first << 8) | get_byte(bytes, place);
            last := (last << 8) | get_byte(bytes, size - 8 + place);
        END LOOP;
        first := first # 7458650908927343033;
        last := last # -5812251307325107654;
        total := size + {xxh3_number}({xxh3_word}(decode(lpad(to_hex(first), 16, '0'), 'hex'), 0))
            + {xxh3_number}(last) + {xxh3_number}({xxh3_fold}(first, last));
        word := {xxh3_spread}(total);
    ELSIF size <= 128 THEN
        total := size * 11400714785074694791;
        FOR part IN 0 .. (size - 1) / 32 LOOP
            total := total + {xxh3_mix}(bytes, 16 * part, secret, 32 * part)
                + {xxh3_mix}(bytes, size - 16 * (part + 1), secret, 32 * part + 16);
        END LOOP;
        word := {xxh3_spread}(total);
    ELSIF size <= 240 THEN
        total := size * 11400714785074694791;
        FOR part IN 0 .. 7 LOOP
            total := total + {xxh3_mix}(bytes, 16 * part, secret, 16 * part);
        END LOOP;
        total := {xxh3_number}({xxh3_spread}(total)) + {xxh3_mix}(bytes, size - 16, secret, 119);
        FOR part IN 8 .. size / 16 - 1 LOOP
            total := total + {xxh3_mix}(bytes, 16 * part, secret, 16 * (part - 8) + 3);
        END LOOP;
        word := {xxh3_spread}(total);
    ELSE
        RAISE EXCEPTION 'the key takes % bytes as JSON, and SQL computes the slot of up to 240', size
            USING HINT = 'millwheel state get COMPUTATION KEY reads such a key';
    END IF;
    RETURN {xxh3_shift}(word, 48);
END
$$;
-- A key as the tables have it: compact JSON, with the escapes of millwheel/core/codec.py.
CREATE OR REPLACE FUNCTION {key_text}(key jsonb) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE jsonb_typeof(key)
    WHEN 'array' THEN (
        SELECT '[' || coalesce(string_agg(part.value::text, ',' ORDER BY part.place), '') || ']'
        FROM jsonb_array_elements(key) WITH ORDINALITY AS part (value, place)
    )
    ELSE key::text
END;
CREATE OR REPLACE FUNCTION {slot_of}(key jsonb) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN {slot_of_text}({key_text}(key));
COMMENT ON FUNCTION {slot_of}(jsonb) IS
    'The slot of a key, 0 to 65535. With slot = slot_of(key), a look at one key uses the primary keys'
