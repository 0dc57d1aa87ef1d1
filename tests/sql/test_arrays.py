"""Operators and functions of arrays give what they give in Postgres."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sql.oracle import Oracle, Row, differences
from tests.support.examples import examples

ROWS: list[Row] = [
    {"a": ("_int4", "{3,1,2,1}"), "b": ("_int4", "{1,NULL,2}"), "s": ("_text", '{x,"a b",NULL,""}'),
     "i": ("int4", "1"), "t": ("text", "x"), "f": ("_bool", "{t,f,NULL}")},
    {"a": ("_int4", "{}"), "b": ("_int4", "{NULL}"), "s": ("_text", '{"NULL","\\"","\\\\"}'),
     "i": ("int4", None), "t": ("text", ""), "f": ("_bool", "{}")},
    {"a": ("_int4", None), "b": ("_int4", "{1}"), "s": ("_text", "{}"), "i": ("int4", "-1"),
     "t": ("text", None), "f": ("_bool", None)},
    {"a": ("_int4", "{1,NULL,3}"), "b": ("_int4", "{1,2}"), "s": ("_text", "{b,a}"),
     "i": ("int4", "2"), "t": ("text", "b"), "f": ("_bool", "{f}")},
]  # fmt: skip

EXPRESSIONS = (
    r"""
a¦b¦s¦f¦a::text¦s::text¦f::text¦a = b¦a <> b¦a < b¦a <= b¦a > b¦a >= b¦a = a¦b = b¦s < array['a']
b is not distinct from a¦greatest(a, b)¦least(a, b)¦a in (b, '{}')¦a[1]¦s[2]¦a[i]¦b[0]¦i = any(a)
i <> all(b)¦t = any(s)¦array_length(a, 1)¦array_length(b, 2)¦array_length(a, i)¦array_upper(a, 1)
array_lower(a, 1)¦array_ndims(a)¦array_dims(b)¦cardinality(a)¦array_position(a, 1)
array_position(a, i)¦array_position(b, null)¦array_position(a, 1, 3)¦array_position(a, 1, i)
array_position(s, t)¦array_position(a, 1, null)¦array_positions(a, 1)¦array_positions(b, null)
array_positions(s, 'x')¦array_position(a, 1, -5)¦array_append(a, i)¦array_append(a, null)
array_prepend(i, a)¦array_cat(a, b)¦a || b¦a || i¦i || a¦a || 1¦s || t¦t || s¦s || 'q'::text
array_append(s, 'x')¦array_prepend('x', s)¦a || null¦null || a¦a || '{5}'¦s || '{u,v}'
a || array[7]¦array_append(null, 1)¦a || 1::int8¦a @> b¦a <@ b¦a && b¦a @> '{}'¦a && '{}'
a @> array[1]¦s @> array['x']¦s && array[t]¦s <@ '{x,NULL,"","a b"}'¦a @> array[null::int]
array_remove(a, 1)¦array_remove(b, null)¦array_remove(s, t)¦array_replace(a, 1, 9)
array_replace(b, null, 5)¦array_replace(a, i, null)¦array_to_string(a, ',')
array_to_string(b, ',', '*')¦array_to_string(s, t)¦array_to_string(f, '-')
array_to_string(s, ',', null)¦array_to_string(a, null, 'x')¦string_to_array('a,b,,c', ',')
string_to_array('a,b', null)¦string_to_array('', ',')¦string_to_array('abc', '')
string_to_array(t, ',')¦string_to_array('a,b,a', ',', 'a')¦string_to_array('aXXb', 'XX')
string_to_array(null, ',')¦string_to_array('', null)¦array_reverse(a)¦array_sort(a)¦array_sort(b)
array_sort(b, true)¦array_sort(b, true, false)¦array_sort(b, false, true)¦array_sort(s)
trim_array(a, 1)¦trim_array(a, i)¦trim_array(b, -1)¦trim_array(b, 99)¦'{}'::int[]¦'{1,2}'::int[]
' { 1 , NULL , 2 } '::int[]¦'{1,}'::int[]¦'{,}'::text[]¦'{1'::int[]¦'1}'::int[]¦'{1}x'::int[]
''::int[]¦'{"1"}'::int[]¦'{a b , c}'::text[]¦'{"a"b}'::text[]¦'{a"b"}'::text[]¦'{a\ ,\"}'::text[]
'{"NULL",null,Null,nulls}'::text[]¦'{\NULL}'::text[]¦'{""}'::text[]¦'{"a,b","{c}"}'::text[]
'{t,no,1}'::bool[]¦'{x}'::bool[]¦'{99999}'::int2[]¦'{\x41,NULL}'::bytea[]¦array['\x41'::bytea]
'{a\}'::text[]¦'{a}}'::text[]¦array[1, 2]::text¦array['a', null, 'NULL', 'a"b', 'a\b', ' ', 'ä,']
array[true, false]::text¦array[1, 2]::int8[]¦array['1', '2']::int[]¦array['x']::int[]
array[1, 2]::text[]¦array['abc']::varchar(2)[]¦'{abc,d}'::varchar(2)[]¦array[1] || array[2::int8]
array[1] = array[1::int8]¦array['a'] = '{a}'¦array[1, 2] || 3¦array[null, 1] < array[1]
array[1] < array[1, null]¦array[null] = array[null]¦array['a', 'B'] < array['a', 'b']¦concat(a, s)
array['a'::char(3), 'a']¦array['a'::char(3)] = array['a'::char(2)]
array_position(array['a'::char(3)], 'a')¦to_jsonb(s)¦to_jsonb(a)
array['1'::jsonb] = array['true'::jsonb]¦array_position(array['1'::jsonb], 'true')
array['1'::jsonb] @> array['true'::jsonb]¦array['1'::jsonb] || '2'::jsonb
array_remove(array['1'::jsonb, 'true'], '1')¦array['123e4567e89b42d3a456426614174000'::uuid]
jsonb_build_array(a, f)¦array_sort(f)¦array_sort(array['b','B','a'])
""".strip()
    .replace("\n", "¦")
    .split("¦")
)


@pytest.mark.parametrize("row", ROWS, ids=["usual", "empty", "null", "short"])
def test_arrays_are_those_of_postgres(oracle: Oracle, row: Row) -> None:
    found = differences(oracle, EXPRESSIONS, row)
    assert not "\n".join(each for each in found if "is not available here" not in each)


def _literal(items: list[str | None]) -> str:
    return "{" + ",".join(
        "NULL" if each is None else '"' + each.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for each in items
    ) + "}"  # fmt: skip


INTEGERS = st.lists(st.none() | st.integers(-1, 3).map(str), max_size=4).map(_literal)
WORDS = st.none() | st.sampled_from(
    ["", "a", "b", "a b", "NULL", "null", '"', "\\", ",", "{", "}", "é", " ", "\t", "a,b"]
)
TEXTS = st.lists(WORDS, max_size=4).map(_literal)
WRITTEN = st.text(st.sampled_from('{},"\\ aN1'), max_size=8) | st.text(
    st.sampled_from('{},"\\ aN1UL'), max_size=6
).map("{{{}}}".format)
CALLS = (
    r"""
a = b¦a <> b¦a < b¦a <= b¦a > b¦a >= b¦s = r¦s < r¦s >= r¦a @> b¦a <@ b¦a && b¦s @> r¦s && r
a || b¦s || r¦a || i¦i || a¦s || t¦t || s¦array_position(a, i)¦array_position(a, i, k)
array_positions(a, i)¦array_position(s, t)¦array_positions(s, t)¦array_remove(a, i)
array_remove(s, t)¦array_replace(a, i, k)¦array_replace(s, t, 'x')¦array_append(a, i)
array_prepend(i, a)¦array_cat(a, b)¦array_length(a, 1)¦array_length(a, k)¦cardinality(a)
array_upper(a, 1)¦array_lower(a, i)¦array_ndims(a)¦array_dims(a)¦array_to_string(a, t)
array_to_string(s, t)¦array_to_string(s, ',', t)¦string_to_array(t, ',')¦string_to_array(t, t)
string_to_array(array_to_string(s, ','), ',', t)¦string_to_array(t, null)¦s¦s::text¦w::text[]
w::int[]¦array_reverse(s)¦array_sort(a)¦array_sort(s)¦array_sort(s, true)
array_sort(a, true, false)¦trim_array(a, k)¦a[i]¦s[k]¦i = any(a)¦t = any(s)¦t <> all(s)¦k > all(a)
a::text::int[]¦s::text::text[] = s¦s::varchar(1)[]¦a::text[]¦s::int[]¦array[t, 'x'] || s
array[i, k] < a¦greatest(a, b)¦to_jsonb(s)¦coalesce(a, b)¦nullif(a, b)¦a is distinct from b
concat(s, a)¦format('%L', s)¦quote_literal(s)¦jsonb_build_array(a, s)
""".strip()
    .replace("\n", "¦")
    .split("¦")
)


@settings(max_examples=examples(200), deadline=None)
@given(
    numbers=st.tuples(st.none() | INTEGERS, INTEGERS), texts=st.tuples(TEXTS, TEXTS),
    items=st.tuples(st.none() | st.integers(-1, 3).map(str), st.integers(-1, 3).map(str)),
    word=WORDS, written=WRITTEN,
    calls=st.lists(st.sampled_from(CALLS), min_size=8, max_size=8, unique=True),
)  # fmt: skip
def test_any_arrays_are_those_of_postgres(
    oracle: Oracle,
    numbers: tuple[str | None, str],
    texts: tuple[str, str],
    items: tuple[str | None, str],
    word: str | None,
    written: str,
    calls: list[str],
) -> None:
    row: Row = {
        "a": ("_int4", numbers[0]), "b": ("_int4", numbers[1]), "s": ("_text", texts[0]),
        "r": ("_text", texts[1]), "i": ("int4", items[0]), "k": ("int4", items[1]),
        "t": ("text", word), "w": ("text", written),
    }  # fmt: skip
    found = differences(oracle, calls, row)
    assert not "\n".join(each for each in found if "not available here" not in each)
