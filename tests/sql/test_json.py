"""Operators and functions of jsonb give what they give in Postgres."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.sql.functions.composites.json_texts import from_json, to_json
from tests.sql.oracle import Oracle, Row, differences
from tests.support.examples import examples

ROWS: list[Row] = [
    {"j": ("jsonb", '{"bb": 1, "a": [1, 2.50, "x", null, true], "c": {"d": {"e": "f"}}, "": -0.0}'),
     "k": ("jsonb", '[1, "a", {"a": 1}, null, false, [1]]'), "i": ("int4", "1"), "t": ("text", "a"),
     "p": ("_text", "{c,d,e}")},
    {"j": ("jsonb", "{}"), "k": ("jsonb", "[]"), "i": ("int4", "-1"), "t": ("text", ""),
     "p": ("_text", "{}")},
    {"j": ("jsonb", '"a"'), "k": ("jsonb", "null"), "i": ("int4", "0"), "t": ("text", "0"),
     "p": ("_text", "{0,NULL}")},
    {"j": ("jsonb", "12.70"), "k": ("jsonb", "true"), "i": ("int4", None), "t": ("text", None),
     "p": ("_text", "{a,1}")},
    {"j": ("jsonb", '[0, {"a": {"b": [null, 2]}}, "a", "a"]'), "k": ("jsonb", None),
     "i": ("int4", "-2147483648"), "t": ("text", "-1"), "p": ("_text", "{1,a,b,-1}")},
]  # fmt: skip

EXPRESSIONS = (
    r"""
j¦k¦j::text¦j -> 'a'¦j -> 'a' -> 1¦j ->> 'bb'¦j -> 'a' ->> 3¦j -> 'zz'¦k -> i¦k ->> i¦k -> -1
j -> t¦j ->> t¦j['a']¦j #> p¦j #>> p¦k #> '{2,a}'¦k #>> array['5', ' 0']¦j #> '{a,-1}'¦j #> '{}'
j #> '{a,x}'¦j #>> '{c}'¦k #> p¦jsonb_extract_path(j, 'c', 'd')
jsonb_extract_path_text(j, 'a', '2')¦jsonb_extract_path(j, t)¦jsonb_extract_path(j, null)¦j ? 'a'
k ? 'a'¦j ? t¦j ?| array['x', 'a']¦j ?& array['a', 'bb']¦j ?| p¦j ?& p¦k ?| '{}'¦k ?& '{}'
j ?| '{NULL,a}'¦j @> '{"a": [1]}'¦j @> '{"c": {"d": {}}}'¦k @> '[1]'¦k @> '1'¦'1'::jsonb @> k
j <@ j¦k <@ '[1, "a", {"a": 1, "b": 2}, null, false, [1, 2]]'¦k @> '[[1]]'¦k @> '[{}]'
k @> '[true]'¦k @> '{}'¦j @> '[]'¦j @> '"a"'¦j @> k¦k @> j¦'[[1]]'::jsonb @> '[1]'
'[1.0]'::jsonb @> '1'¦j || k¦k || j¦j || '{"a": 1}'¦k || '1'¦'1'::jsonb || k¦j || j¦k || k
k || '[2]'¦'{}'::jsonb || j¦'[]'::jsonb || j¦'1'::jsonb || '2'¦j - 'a'¦k - 'a'¦j - t¦k - i¦j - i
k - 1¦k - -1¦k - 99¦j - array['a', 'bb']¦k - '{a,x}'::text[]¦j - p¦k - 0¦j #- '{a,0}'¦j #- '{a}'
j #- p¦k #- '{0}'¦k #- '{2,a}'¦k #- '{x}'¦j #- '{}'¦j #- '{a,x}'¦j #- '{zz,x}'¦j #- '{bb,x}'
k #- p¦j = j¦j = k¦j <> k¦k = '[1.0, "a", {"a": 1}, null, false, [1]]'¦j is not distinct from k
'1'::jsonb = 'true'¦'{"a": 1}'::jsonb = '{"a": true}'¦k in ('null', 'true')
'[1]'::jsonb = '[true]'¦'[0]'::jsonb <> '[false]'¦jsonb_typeof(j)¦jsonb_typeof(k)
jsonb_typeof(k -> 0)¦jsonb_array_length(j)¦jsonb_array_length(k)¦j::int¦(j -> 'bb')::int8¦k::bool
j::numeric¦j::float8¦j::float4¦k::int2¦j::int2¦j::bool¦to_jsonb(i)¦to_jsonb(t)¦to_jsonb(j)
to_jsonb(p)¦to_jsonb(true)¦to_jsonb('a')¦to_jsonb(null)¦to_jsonb('{a"}'::text[])
jsonb_build_array(i, t, 'x', null, k, p)¦jsonb_build_array()¦jsonb_build_object()
jsonb_build_object('a', i, 'b', k)¦jsonb_build_object(t, 1)¦jsonb_build_object(i, 'x')
jsonb_build_object(true, null)¦jsonb_build_object('a')¦jsonb_build_object(j, 1)
jsonb_build_object(p, 1)¦jsonb_build_object('a', 1, 'a', 2)¦concat(j, '-', k)¦j || null
'x' || j::text¦jsonb_set(j, '{a}', '9')¦jsonb_set(j, '{a,1}', k)¦jsonb_set(j, p, '9')
jsonb_set(k, '{0}', '9')¦jsonb_set(k, '{99}', '9')¦jsonb_set(k, '{-99}', '9')
jsonb_set(k, '{99}', '9', false)¦jsonb_set(j, '{zz}', '9', false)¦jsonb_set(j, '{zz,y}', '9')
jsonb_set(k, '{x}', '9')¦jsonb_set(j, '{}', '9')¦jsonb_set(k, p, '9')¦jsonb_strip_nulls(j)
jsonb_strip_nulls(k)¦jsonb_strip_nulls(k, true)¦'1'::jsonb¦' 1 '::jsonb¦'1e3'::jsonb
'1.50e1'::jsonb¦'1.5E-3'::jsonb¦'-0'::jsonb¦'-0.0'::jsonb¦'01'::jsonb¦'1.'::jsonb¦'.5'::jsonb
'+1'::jsonb¦'NaN'::jsonb¦'Infinity'::jsonb¦''::jsonb¦'nul'::jsonb¦'"a'::jsonb¦'[1,]'::jsonb
'{"a":}'::jsonb¦'{a:1}'::jsonb¦'[1 2]'::jsonb¦'1e400000'::jsonb
'"\u00e9\ud83d\ude00\t\/\"\\"'::jsonb¦'"\ud83d"'::jsonb¦'"\u0000"'::jsonb¦'"\x"'::jsonb
'"\u001f"'::jsonb¦'{"\u0000": 1}'::jsonb
'{"b": 1, "a": 2, "aa": 3, "ä": 4, "B": 5, "b": 6}'::jsonb¦'["\u007f", "é", "\b\f\n\r"]'::jsonb
'[ ]'::jsonb¦'{ }'::jsonb¦E'"\t"'::jsonb¦'"\u00E9"'::jsonb ->> 0¦'1e-16384'::jsonb
'1e131072'::jsonb = '1'¦'[1]'::jsonb -> '0'¦'{"1": 2}'::jsonb -> 1¦t::jsonb¦'"a"'::jsonb -> 0
array['1'::jsonb, null, '"a b"']¦array['{"a": 1}'::jsonb]::text¦quote_literal(j)¦coalesce(k, j)
j is null¦k is null¦k -> 3 is null¦nullif(k, 'null')¦('{"a": 12345678901}'::jsonb -> 'a')::int
('12.5'::jsonb)::int¦('-12.5'::jsonb)::int¦('1e400'::jsonb)::float8¦('1e39'::jsonb)::float4
('0.1'::jsonb)::float8
""".strip()
    .replace("\n", "¦")
    .split("¦")
)


@pytest.mark.parametrize("row", ROWS, ids=["object", "empty", "text", "number", "array"])
def test_json_is_that_of_postgres(oracle: Oracle, row: Row) -> None:
    found = differences(oracle, EXPRESSIONS, row)
    assert not "\n".join(each for each in found if "is not available here" not in each)


NAMES = st.sampled_from(["a", "b", "aa", "", "é", "0", "1", "-1", 'c"d'])
JSON_NUMBERS = st.sampled_from(
    ["0", "1", "-1", "1.0", "1.50", "-0.0", "1e2", "1.5e-3", "2", "1E+1"]
)
JSON_TEXTS = st.one_of(
    st.sampled_from(
        ['"a"', '"b"', '""', '"1"', '"\\u00e9\\n\\""', '"null"', "null", "true", "false"]
    ),
    JSON_NUMBERS,
)


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(name)} : {value}" for name, value in pairs) + "}"


JSONS = st.recursive(
    JSON_TEXTS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + " , ".join(items) + "]"),
        st.lists(st.tuples(NAMES, inner), max_size=3).map(_object),
    ),
    max_leaves=7,
)
PATHS = st.lists(NAMES | st.sampled_from(["NULL", " 1", "x"]), max_size=3).map(
    lambda names: "{" + ",".join(
        each if each == "NULL" else '"' + each.replace('"', '\\"') + '"' for each in names
    ) + "}"
)  # fmt: skip
CALLS = (
    r"""
j¦j -> t¦j ->> t¦j -> i¦j ->> i¦j #> p¦j #>> p¦jsonb_extract_path(j, t, t)
jsonb_extract_path_text(j, t)¦j['a']¦j ? t¦j ?| p¦j ?& p¦j @> k¦j <@ k¦j || k¦k || j¦j - t¦j - i
j - p¦j #- p¦j = k¦j <> k¦j = j¦jsonb_typeof(j)¦jsonb_array_length(j)¦j::int¦j::bool¦j::int8
j::int2¦(j -> 0)::int¦to_jsonb(p)¦jsonb_build_array(j, t, i, p)¦jsonb_build_object(t, j, 'x', k)
jsonb_set(j, p, k)¦jsonb_set(j, p, k, false)¦jsonb_strip_nulls(j)¦jsonb_strip_nulls(j, true)
j @> (j -> t)¦j @> (j || '{}')¦array[j, k] = array[k, j]¦j || (k -> t)¦(j || k) - t¦j @> (k -> i)
(j -> t) = (k -> t)¦(j || '{"a": {"a": []}}') #- p¦jsonb_set('{"a": [1, {"b": 2}]}', p, j)
x::jsonb¦j - p = k¦(j || k) #> p¦j::text::jsonb = j¦array[j, null]::text¦j is not distinct from k
j <@ '[1, 2, "a", null, true, [], {}]'¦j || '[]'
""".strip()
    .replace("\n", "¦")
    .split("¦")
)


@settings(max_examples=examples(200), deadline=None)
@given(
    values=st.tuples(JSONS, JSONS), name=NAMES, index=st.integers(-3, 3), path=PATHS,
    written=st.text(st.sampled_from('{}[]",:1-.e0 tnul\\a'), max_size=6),
    calls=st.lists(st.sampled_from(CALLS), min_size=8, max_size=8, unique=True),
)  # fmt: skip
def test_any_json_is_that_of_postgres(
    oracle: Oracle, values: tuple[str, str], name: str, index: int, path: str, written: str,
    calls: list[str],
) -> None:  # fmt: skip
    row: Row = {
        "j": ("jsonb", values[0]), "k": ("jsonb", values[1]), "t": ("text", name),
        "i": ("int4", str(index)), "p": ("_text", path), "x": ("text", written),
    }  # fmt: skip
    assert not "\n".join(differences(oracle, calls, row))


@pytest.mark.parametrize("value", [None, [1, None], {"a": None, "b": [1, "x", True]}, "x"])
def test_values_of_other_programs_come_back(value: object) -> None:
    assert to_json(from_json(value)) == value


def test_a_decoded_float_keeps_its_digits() -> None:
    assert from_json([1.5, 1e20]) == [Decimal("1.5"), 10**20]
