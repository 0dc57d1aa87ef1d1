"""Regular expressions match what they match in Postgres, or are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sql.oracle import Oracle, Row, differences
from tests.support.examples import examples

ROWS: list[Row] = [
    {"s": ("text", "foo bar 42, ba\n+z"), "z": ("text", None),
     "c": ("bpchar", "ab  "), "n": ("int4", "2")},
    {"s": ("text", ""), "z": ("text", "x"), "c": ("bpchar", ""), "n": ("int4", "0")},
    {"s": ("text", "Größe ²x: é_É Straße K ſ"), "z": ("text", "GRÖ"),
     "c": ("bpchar", "é"), "n": ("int4", "1")},
]  # fmt: skip

EXPRESSIONS = (
    r"""
s ~ 'o+'¦s ~ '^foo'¦s ~ 'z$'¦s ~ '\d'¦s !~ 'x'¦s ~* 'FOO'¦s !~* 'BAR'¦s ~ z¦s ~* z¦c ~ 'b$'
c ~* 'B  $'¦s ~ 'ba$'¦s ~ '(?n)ba$'¦s ~ '\mbar\M'¦s ~ '\yba\y'¦s ~ 'a\Y'¦s ~ '\Afoo'¦s ~ 'z\Z'
s ~ '[[:digit:]]{2}'¦s ~ '[^[:alpha:]]'¦s ~ '[]a]'¦s ~ '[^]a]'¦s ~ '[a-]'¦s ~ '[\d,]'¦s ~ '[\]]'
s ~ '(o)\1'¦s ~ '(a)\1'¦s ~ '(?=b)ba'¦s ~ 'o(?! )'¦s ~ '(?<=b)a'¦s ~ '(?<!b)a'¦s ~ 'a|^$'¦s ~ ''
s ~ '('¦s ~ ')'¦s ~ '['¦s ~ '*'¦s ~ 'a**'¦s ~ 'a{2,1}'¦s ~ 'a{256}'¦s ~ 'a{,2}'¦s ~ '{'¦s ~ '\'
s ~ '\q'¦s ~ '[[:x:]]'¦s ~ '[z-a]'¦s ~ '^*'¦s ~ 'a|*'¦s ~ '(*a)'¦s ~ '(?:a'¦s ~ 'a{1'¦s ~ 'a{1,x}'
s ~ '\1'¦s ~ '(a)\2'¦s ~ ']'¦s ~ '}'¦s ~ 'o{2}'¦s ~ 'o{1,}?'¦s ~ 'o?\s'¦s ~ '[a-c-e]'¦s ~ 'ö'
s ~* 'GRÖSSE'¦s ~ '\w²'¦s ~ '²\w'¦s ~* 'é_é'¦s ~* 'k'¦s ~* 's$'¦s ~* 'ſ'¦s ~* '[k]'
s ~ '[[:upper:]]{2}'¦s ~* '[[:upper:]]{4}'¦s ~ '\u00e9'¦s ~ '\W\w'¦s ~ '\S\S\s'¦s ~ '[[:punct:]]'
s ~ '[[:space:]]'¦s ~ '.\n'¦s ~ '(?n).\n.'¦s ~ '(?n)^\+'¦s ~ '(?i)FOO'¦s ~ '(?ic)FOO'¦s ~ '\.'
s ~ '\$'¦substring(s, 'o+')¦substring(s, '(\w+) (\w+)')¦substring(s, 'x(y)?')
substring(s from '\d+')¦substring(s, '(x)?foo')¦substring(s, 'o.*a')¦substring(s, 'o.*?a')
substring(s, '^(\w+)\s+(.*)$')¦substring(s, '(a|b)+')¦substring(s, '(foo|bar)')
substring(s, 'a?(ab)?')¦substring(s, '(fo|foo)')¦substring(s, '[^ ]+$')
regexp_match(s, '(\w+) (\w+)')¦regexp_match(s, '\d+')¦regexp_match(s, '(x)|(f)')
regexp_match(s, 'O+', 'i')¦regexp_match(s, 'o', 'g')¦regexp_match(s, 'zz')
regexp_match(s, '(.*) (.*)')¦regexp_match(s, '(.*?) (.*?)')¦regexp_match(s, '^(.*?)(\d+)(.*)$')
regexp_match(s, '(\d)+')¦regexp_match(s, '(a*)(ab)*')¦regexp_like(s, 'FOO', 'i')
regexp_like(s, '^\+', 'n')¦regexp_like(s, 'o')¦regexp_like(s, 'o', 'g')¦regexp_like(s, 'o', 'zz')
regexp_like(s, 'o', null)¦regexp_like(s, '+', 'q')¦regexp_count(s, 'o')¦regexp_count(s, '')
regexp_count(s, 'o*')¦regexp_count(s, 'a', 5)¦regexp_count(s, 'O', 1, 'i')¦regexp_count(s, 'a', n)
regexp_count(s, 'a', -1)¦regexp_substr(s, '\w+')¦regexp_substr(s, '\w+', 3)
regexp_substr(s, '\w+', 1, 2)¦regexp_substr(s, '(b)(a)', 1, 1, '', 2)
regexp_substr(s, 'B.', 1, n, 'i')¦regexp_substr(s, '(b)', 1, 1, '', 3)
regexp_substr(s, 'b', 1, 1, '', -1)¦regexp_instr(s, 'a')¦regexp_instr(s, 'a', 1, 2)
regexp_instr(s, 'a', 1, 1, 1)¦regexp_instr(s, '(x)?a', 1, 1, 0, '', 1)
regexp_instr(s, 'A', 1, n, 0, 'i')¦regexp_instr(s, 'a', 1, 1, 2)¦regexp_split_to_array(s, '\s+')
regexp_split_to_array(s, '')¦regexp_split_to_array(s, 'o*')¦regexp_split_to_array(s, 'O', 'i')
regexp_replace(s, 'o', 'X')¦regexp_replace(s, 'o', 'X', 'g')
regexp_replace(s, '(\w)(\w)', '\2\1', 'g')¦regexp_replace(s, 'o', '[\&]\\\q\9', 'g')
regexp_replace(s, 'O', '', 'gi')¦regexp_replace(s, '', '-', 'g')¦regexp_replace(s, 'o*', '-', 'g')
regexp_replace(s, 'a', 'X', 6)¦regexp_replace(s, 'a', 'X', 1, 2)
regexp_replace(s, 'A', 'X', 1, 0, 'i')¦regexp_replace(s, 'a', 'X', n)
regexp_replace(s, 'a', 'X', '1')¦regexp_replace(s, 'a', 'X', 1, -1)¦regexp_replace(s, '\s+$', '')
regexp_replace(s, '^\s+|\s+$', '', 'g')¦regexp_replace(s, '[^0-9]', '', 'g')
regexp_replace(s, '(?n)^', '> ', 'g')¦regexp_replace(s, 'a', '\', 'g')
regexp_replace(s, '(x)?o', '<\1>', 'g')¦regexp_replace(s, z, '!')
regexp_replace(s, 'é', 'e', 'ig')
""".strip()
    .replace("\n", "¦")
    .split("¦")
)


def unlike(oracle: Oracle, expressions: list[str], row: Row) -> list[str]:
    """The differences but those that are refused."""
    return [
        each
        for each in differences(oracle, expressions, row)
        if "is not available here" not in each
    ]


@pytest.mark.parametrize("row", ROWS, ids=["usual", "empty", "odd"])
def test_expressions_match_as_in_postgres(oracle: Oracle, row: Row) -> None:
    assert not "\n".join(unlike(oracle, EXPRESSIONS, row))


def _repeated(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantifiers = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{2,}", "*?", "+?", "??"])
    return st.one_of(
        st.tuples(inner, quantifiers).map("".join),
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map("({})".format),
        st.tuples(inner, quantifiers).map(lambda pair: f"({pair[0]}){pair[1]}"),
        inner.map("(?:{})".format),
        inner.map("(?={})".format),
    )


ATOMS = [
    "a", "b", "c", "ab", ".", "[ab]", "[^a]", "[a-c]", r"\w", r"\d", r"\s", r"\W", r"\y", r"\m",
    r"\M", "^", "$", "é", "A", r"\1", "[[:alpha:]]", r"\S", "1", " ", r"\.", "{", "]", "-", "[a-",
    r"[\d_]", "[[:punct:]]", "K",
]  # fmt: skip
PATTERNS = st.recursive(st.sampled_from(ATOMS), _repeated, max_leaves=6)
MATCHED = st.text(st.sampled_from("aabbcAB1 \n.é²_-\u0301K"), max_size=8)
LETTERS = st.sampled_from(["", "i", "n", "g", "gi", "s", "q", "c", "in"])
CALLS = (
    """
s ~ p¦s ~* p¦s !~ p¦substring(s, p)¦regexp_match(s, p)¦regexp_match(s, p, o)¦regexp_like(s, p, o)
regexp_count(s, p)¦regexp_count(s, p, n, o)¦regexp_substr(s, p, n, 1, o, 1)
regexp_instr(s, p, 1, n, 1, o)¦regexp_replace(s, p, r)¦regexp_replace(s, p, r, o)
regexp_replace(s, p, r, n)¦regexp_replace(s, p, r, 1, n, o)¦regexp_split_to_array(s, p)
regexp_split_to_array(s, p, o)
""".strip()
    .replace("\n", "¦")
    .split("¦")
)


@settings(max_examples=examples(300), deadline=None)
@given(text=MATCHED, pattern=PATTERNS, letters=LETTERS, data=st.data())
def test_any_expression_matches_as_in_postgres(
    oracle: Oracle, text: str, pattern: str, letters: str, data: st.DataObject
) -> None:
    replacement = data.draw(st.sampled_from(["X", "", r"<\1>", r"\&\&", r"\2", "\\", r"\x"]))
    number = data.draw(st.integers(0, 3))
    row: Row = {
        "s": ("text", text), "p": ("text", pattern), "o": ("text", letters),
        "r": ("text", replacement), "n": ("int4", str(number)),
    }  # fmt: skip
    calls = data.draw(st.lists(st.sampled_from(CALLS), min_size=4, max_size=4, unique=True))
    assert not "\n".join(unlike(oracle, calls, row))
