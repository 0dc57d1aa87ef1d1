"""Operators and functions of texts, bytes and UUIDs give what they give in Postgres."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sql.oracle import Oracle, Row, differences
from tests.support.examples import examples

ROWS: list[Row] = [
    {"s": ("text", "Hello wörld"), "t": ("text", "lo"), "v": ("varchar", "a,b,,c"),
     "c": ("bpchar", "ab  "), "n": ("int4", "3"), "m": ("int4", "-2"), "z": ("text", None),
     "y": ("bytea", "\\x00ff41"), "u": ("uuid", "123e4567-e89b-42d3-a456-426614174000"),
     "p": ("bool", "true"), "k": ("int8", "12345678901")},
    {"s": ("text", ""), "t": ("text", ""), "v": ("varchar", ""), "c": ("bpchar", ""),
     "n": ("int4", "0"), "m": ("int4", "2147483647"), "z": ("text", "a'b\\c"), "y": ("bytea", ""),
     "u": ("uuid", "00000000-0000-0000-0000-000000000000"), "p": ("bool", None),
     "k": ("int8", "-1")},
    {"s": ("text", "ǆ İstanbul ß ﬁ Σίσυφος ²x"), "t": ("text", "%_\\"),
     "v": ("varchar", "%s %I %L"),
     "c": ("bpchar", "select"), "n": ("int4", "-1"), "m": ("int4", "-2147483648"),
     "z": ("text", "2"), "y": ("bytea", "\\x5c5c30"), "u": ("uuid", None), "p": ("bool", "f"),
     "k": ("int8", None)},
]  # fmt: skip

EXPRESSIONS = (
    r"""
s || t¦s || z¦s || n¦n || s¦s || p¦s || u¦s || y¦'a' || 'b'¦s || null¦s || 1.50¦k || 'x'¦c || 'x'
v || c¦y || y¦lower(s)¦upper(s)¦initcap(s)¦length(s)¦char_length(v)¦character_length(c)
octet_length(s)¦octet_length(c)¦bit_length(s)¦length(c)¦length(y)¦octet_length(y)¦bit_length(y)
reverse(s)¦reverse(y)¦substring(s, n)¦substring(s, n, 2)¦substring(s, m, 5)
substring(s from 2 for 3)¦substr(s, m)¦substr(s, 2, m)¦substring(s for 2)¦substring(y, n)
substring(y, 2, 1)¦substr(y, m, 3)¦substring(y, 1, m)¦substring(s, 3, m)¦left(s, n)¦left(s, m)
right(s, n)¦right(s, m)¦left(v, 2)¦right(c, 2)¦lpad(s, 20, t)¦rpad(s, 20, t)¦lpad(s, n)¦rpad(s, n)
lpad(s, m, 'x')¦lpad(s, 14, 'xyz')¦rpad(t, 5, s)¦rpad(s, 5, '')¦btrim(s, t)¦ltrim(s, t)
rtrim(s, t)¦btrim(c)¦trim(s)¦trim(both 'H' from s)¦trim(leading from s)¦rtrim(c)
replace(s, t, 'X')¦replace(s, 'l', '')¦translate(s, 'lo', 'x')¦translate(s, t, 'abc')
translate(s, '', 'x')¦repeat(s, n)¦repeat(t, 3)¦strpos(s, t)¦position(t in s)¦position('' in s)
position('\xff'::bytea in y)¦split_part(v, ',', n)¦split_part(v, ',', m)¦split_part(v, ',', -1)
split_part(v, ',', 1)¦split_part(s, t, 1)¦split_part(v, '', 1)¦split_part(v, '', 2)
split_part(s, 'l', -3)¦split_part('aXXbXXc', 'XX', 2)¦starts_with(s, 'He')¦s ^@ t¦s ^@ ''
concat(s, n, p, null, z, y, u, 1.50)¦concat(null)¦concat(c, '|', v)¦concat_ws(',', s, z, t, p)
concat_ws(z, s, t)¦concat_ws(null, 'a')¦concat_ws('-', null, null)¦concat('a', true)
format('%s', s)¦format(v, s, t, z)¦format('%I %L %%', s, z)¦format('%2$s %1$s', s, n)
format('%10s|%-10s|', t, s)¦format('%s')¦format('%')¦format('%q', 1)¦format(null, 1)¦format('a')
format('%*s', n, t)¦format('%-*s|', 5, t)¦format('%2$*1$s|', 6, s)¦format('%0$s', 1)
format('%I', z)¦format('%L', null)¦format('%s %s', p, y)¦format('%1$s %s', 1, 2)¦ascii(s)¦ascii(t)
chr(n)¦chr(m)¦chr(8364)¦chr(55296)¦chr(65)¦chr(1114112)¦chr(0)¦md5(s)¦md5(y)¦sha224(y)¦sha256(y)
sha384(y)¦sha512(y)¦encode(y, 'hex')¦encode(y, 'base64')¦encode(y, 'escape')¦encode(y, 'x')
decode(s, 'escape')¦decode('00FF', 'hex')¦decode('0', 'hex')¦decode('0g', 'hex')
decode(' 0 0', 'hex')¦decode('aGVsbG8=', 'base64')¦decode('aGVsbG8', 'base64')
decode('aG Vs', 'base64')¦decode('a', 'base64')¦decode('', 'base64')¦decode('aa==', 'base64')
decode('aaa=aaaa', 'base64')¦decode('=', 'base64')¦decode('a===', 'base64')
decode('aaaa=', 'base64')¦decode('a*aa', 'base64')¦decode('\x41', 'escape')
decode('\101\\', 'escape')¦decode('\400', 'escape')¦decode('aa==aa', 'base64')
encode(sha512('a')||sha512('b'), 'base64')¦crc32(y)¦bit_count(y)¦quote_literal(s)¦quote_literal(z)
quote_ident(s)¦quote_ident(c)¦quote_ident('a1_b')¦quote_nullable(z)¦quote_literal(n)
quote_nullable(k)¦quote_literal(p)¦quote_ident('Ab')¦quote_ident('a"b')¦quote_ident('ä')
quote_ident('interval')¦overlay(s placing t from 2)¦overlay(s placing t from n for 1)
overlay(s placing 'X' from 3 for m)¦overlay(y placing y from 2)
overlay(y placing '\x01'::bytea from n for 2)¦overlay(s, 'abc', 2)¦overlay(s, 'abc', 2, 0)
get_byte(y, 0)¦get_byte(y, 9)¦get_bit(y, 8)¦set_byte(y, 1, 300)¦set_byte(y, n, 1)¦set_bit(y, 3, 1)
set_bit(y, 3, 2)¦get_bit(y, 99)¦btrim(y, '\x0041'::bytea)¦ltrim(y, '\x00'::bytea)¦rtrim(y, y)
y = '\x00ff41'¦y < '\x01'¦y like '%A'::bytea¦s::varchar(3)¦s::char(3)¦s::char(20)
v::varchar(2)::text¦c::text¦s::bpchar¦c::varchar¦n::varchar(1)¦p::char(2)¦s::char¦c = 'ab'
c = 'ab '::char(5)¦c < 'b'¦c <> 'ab'¦c >= v¦s = c¦c = 'ab'::text¦cast(s as varchar(4)) || 'x'
y::text¦y::varchar(4)¦u::text¦s::uuid¦u = '123e4567e89b42d3a456426614174000'
u < '{99999999-e89b-42d3-a456-426614174000}'¦'{123e4567e89b-42d3a456426614174000}'::uuid::text
'123e4567-e89b-42d3-a456-4266141740-00'::uuid¦''::uuid¦uuid_extract_version(u)¦'\x4'::bytea
'\x4 1'::bytea¦'\x 41 42 '::bytea¦'\xzz'::bytea¦'a\\b\001'::bytea¦'\'::bytea¦'ä'::bytea¦n::bytea
k::bytea¦y::int4¦y::int2¦s < t¦s > t¦s = any(array[t, 'x'])¦greatest(s, t, v)¦coalesce(v, 'x')
s between 'A' and 'b'¦coalesce(z, c)¦s like 'H%'¦s like '%'¦s like ''¦s like '_ello%'¦s like t
s not like '%l_'¦s ilike 'h%D'¦s ilike '%ISTANBUL%'¦v like '%\%s'¦s like '%o%l%'¦s like 'x\'
s like 'H\'¦s like '%\'¦s like '\%'¦s like 'a!%b' escape '!'¦z like '%!\%' escape '!'
s like '%a' escape ''¦s like 'a' escape 'xx'¦t like '\%\_\\'¦t like '%x_\\' escape 'x'¦c like 'ab'
c like 'ab  '¦c ilike 'AB%'¦like_escape(t, '%')¦like_escape('a\b', '!')¦s not ilike '%O%'
z like null¦s like z¦v like '%,,%'¦v like 'a%c'¦s ilike t
""".strip()
    .replace("\n", "¦")
    .split("¦")
)


@pytest.mark.parametrize("row", ROWS, ids=["usual", "empty", "odd"])
def test_texts_are_those_of_postgres(oracle: Oracle, row: Row) -> None:
    found = differences(oracle, EXPRESSIONS, row)
    assert not "\n".join(each for each in found if "not available here" not in each)


TEXTS = st.text(st.sampled_from("aabAB ,%%__\\'\"éßİǆ€-1²\u0301s$*"), max_size=8)
NUMBERS = st.one_of(
    st.integers(-6, 10), st.sampled_from([2**31 - 1, -(2**31), -(2**31) + 1, 2**31 - 2])
)
CALLS = (
    r"""
s || t¦s || n¦concat(s, t, z, n)¦concat_ws(t, s, z, n, s)¦lower(s)¦upper(s)¦initcap(s)¦length(s)
octet_length(s)¦bit_length(s)¦reverse(s)¦substring(s, n)¦substring(s, n, m)¦substr(s, m)
left(s, n)¦right(s, n)¦lpad(s, n, t)¦rpad(s, n, t)¦lpad(s, k)¦rpad(s, k, z)¦btrim(s, t)
ltrim(s, t)¦rtrim(s, t)¦trim(s)¦replace(s, t, z)¦replace(s, left(s, 1), z)¦translate(s, t, z)
repeat(s, k)¦strpos(s, t)¦position(t in s)¦split_part(s, t, n)¦split_part(s, 'a', n)
split_part(s, left(t, 1), k)¦starts_with(s, t)¦s ^@ left(s, 2)¦ascii(s)¦chr(n)¦md5(s)
quote_literal(s)¦quote_ident(s)¦quote_nullable(z)¦overlay(s, t, n)¦overlay(s, t, n, m)¦s like t
s not like t¦s ilike t¦s like t escape left(t, 1)¦s like '%' || t¦s like '%' || t || '%'
s like t || '%'¦s ilike '%' || t || '_'¦s like translate(s, 'ab', '%_')
s like replace(s, 'a', '%')¦s ilike upper(s)¦like_escape(s, t)¦s < t¦s >= t¦s::char(3)
s::varchar(2)¦s::bpchar = t::bpchar¦s::bpchar < t¦s::char(4) like t
s = any(string_to_array(t, ','))¦format(s, t, n)¦format('%s' || s, t, z)
format('%' || k || '$s', s, t)¦format('%-' || k || 's|%I', t, s)¦format('%*L', k, s)¦y || x
length(y)¦substring(y, n)¦substring(y, n, m)¦position(x in y)¦get_byte(y, k)¦set_byte(y, k, n)
get_bit(y, k)¦overlay(y, x, n, k)¦btrim(y, x)¦ltrim(y, x)¦rtrim(y, x)¦encode(y, 'hex')
encode(y, 'base64')¦encode(y, 'escape')¦decode(s, 'escape')¦decode(s, 'base64')¦decode(s, 'hex')
sha256(y)¦md5(y)¦y < x¦y like x¦y::text¦s::bytea¦('\x' || s)::bytea
decode(encode(y, 'base64'), 'base64')¦set_bit(y, k, 1)¦reverse(y)¦bit_count(y)
decode(translate(s, ' ,%_\''é', '=AAZz=/+'), 'base64')¦n::bytea¦y::int4¦s::uuid¦crc32(y)
""".strip()
    .replace("\n", "¦")
    .split("¦")
)


@settings(max_examples=examples(200), deadline=None)
@given(
    texts=st.tuples(TEXTS, TEXTS, st.none() | TEXTS), numbers=st.tuples(NUMBERS, NUMBERS),
    count=st.integers(-3, 12), data=st.tuples(st.binary(max_size=5), st.binary(max_size=2)),
    calls=st.lists(st.sampled_from(CALLS), min_size=8, max_size=8, unique=True),
)  # fmt: skip
def test_any_texts_are_those_of_postgres(
    oracle: Oracle,
    texts: tuple[str, str, str | None],
    numbers: tuple[int, int],
    count: int,
    data: tuple[bytes, bytes],
    calls: list[str],
) -> None:
    row: Row = {
        "s": ("text", texts[0]), "t": ("text", texts[1]), "z": ("text", texts[2]),
        "n": ("int4", str(numbers[0])), "m": ("int4", str(numbers[1])), "k": ("int4", str(count)),
        "y": ("bytea", "\\x" + data[0].hex()), "x": ("bytea", "\\x" + data[1].hex()),
    }  # fmt: skip
    assert not "\n".join(differences(oracle, calls, row))
