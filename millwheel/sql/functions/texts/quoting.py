"""Texts put together: `concat`, `format`, and quotes for SQL."""

from __future__ import annotations

import re
from functools import lru_cache

from millwheel.sql.functions.registry import GIVEN_AS, OUTPUT, ValueRefused, implements

_WORDS = """
all analyse analyze and any array as asc asymmetric authorization between bigint binary
bit boolean both case cast char character check coalesce collate collation column
concurrently constraint create cross current_catalog current_date current_role
current_schema current_time current_timestamp current_user dec decimal default deferrable
desc distinct do else end except exists extract false fetch float for foreign freeze from
full grant greatest group grouping having ilike in initially inner inout int integer
intersect interval into is isnull join json json_array json_arrayagg json_exists
json_object json_objectagg json_query json_scalar json_serialize json_table json_value
lateral leading least left like limit localtime localtimestamp merge_action national
natural nchar none normalize not notnull null nullif numeric offset on only or order out
outer overlaps overlay placing position precision primary real references returning right
row select session_user setof similar smallint some substring symmetric system_user table
tablesample then time timestamp to trailing treat trim true union unique user using
values varchar variadic verbose when where window with xmlattributes xmlconcat xmlelement
xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
"""

KEYWORDS = frozenset(_WORDS.split())
"""Words of Postgres' grammar that need quotes in some place."""

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)

for _key in ("concat(any)", "concat_ws(text,any)", "format(text,any)"):
    GIVEN_AS[_key] = OUTPUT
for _key in (
    "textanycat(text,anynonarray)",
    "anytextcat(anynonarray,text)",
    "quote_literal(anyelement)",
    "quote_nullable(anyelement)",
):
    GIVEN_AS[_key] = "text"


@implements("concat(any)")
def concat(*values: str | None) -> str:
    """All texts but NULL."""
    return "".join([value for value in values if value is not None])


@implements("concat_ws(text,any)", may_be_null=True)
def concat_ws(separator: str | None, *values: str | None) -> str | None:
    """All texts but NULL, with a separator between them."""
    if separator is None:
        return None
    return separator.join([value for value in values if value is not None])


@implements("quote_ident(text)")
def quote_ident(text: str) -> str:
    """A name, in quotes where it needs them."""
    if _PLAIN.fullmatch(text) and text not in KEYWORDS:
        return text
    return '"' + text.replace('"', '""') + '"'


@implements("quote_literal(text)", "quote_literal(anyelement)")
def quote_literal(text: str) -> str:
    """A text as it is written in SQL."""
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    return "E" + quoted if "\\" in text else quoted


@implements("quote_nullable(text)", "quote_nullable(anyelement)")
def quote_nullable(text: str | None) -> str:
    return "NULL" if text is None else quote_literal(text)


# -- format ---------------------------------------------------------------------------------------

_SPECIFIER = re.compile(r"%(?:(\d+)\$)?(-*)(?:(\d+)|(\*)(?:(\d+)\$)?)?(.?)", re.ASCII | re.DOTALL)


@lru_cache(maxsize=256)
def _pieces(text: str) -> list[str | tuple[str, ...]]:
    pieces: list[str | tuple[str, ...]] = []
    at = 0
    while (found := text.find("%", at)) >= 0:
        pieces.append(text[at:found])
        if text.startswith("%", found + 1):
            pieces.append("%")
            at = found + 2
            continue
        match = _SPECIFIER.match(text, found)
        assert match is not None
        pieces.append(tuple(each or "" for each in match.groups()))
        at = match.end()
    pieces.append(text[at:])
    return pieces


class _Arguments:
    """The arguments of `format`, taken in their order or by number."""

    def __init__(self, values: tuple[str | None, ...]) -> None:
        self._values = values
        self._last = 0

    def take(self, number: str) -> str | None:
        if number and not int(number):
            raise ValueRefused("format specifies argument 0, but arguments are numbered from 1")
        self._last = int(number) if number else self._last + 1
        if self._last > len(self._values):
            raise ValueRefused("too few arguments for format()")
        return self._values[self._last - 1]


@implements("format(text)", "format(text,any)", may_be_null=True)
def formatted(text: str | None, *values: str | None) -> str | None:
    """A text with values in the places of ``%s``, ``%I`` and ``%L``."""
    if text is None:
        return None
    arguments = _Arguments(values)
    parts = [
        piece if isinstance(piece, str) else _specified(piece, arguments) for piece in _pieces(text)
    ]
    return "".join(parts)


def _specified(piece: tuple[str, ...], arguments: _Arguments) -> str:
    number, minus, digits, star, star_number, kind = piece
    if not kind:
        raise ValueRefused("unterminated format() type specifier")
    if kind not in "sIL":
        raise ValueRefused(f'unrecognized format() type specifier "{kind}"')
    width = int(digits or 0)
    if width >= 2**31:
        raise ValueRefused("number is out of range")
    if star:
        width = _width(arguments.take(star_number))
    value = arguments.take(number)
    if kind == "L":
        shown = quote_nullable(value)
    elif value is None:
        if kind == "I":
            raise ValueRefused("null values cannot be formatted as an SQL identifier")
        shown = ""
    else:
        shown = quote_ident(value) if kind == "I" else value
    return shown.ljust(abs(width)) if minus or width < 0 else shown.rjust(width)


def _width(value: str | None) -> int:
    try:
        return int(value or 0)
    except ValueError:
        raise ValueRefused(f'invalid input syntax for type integer: "{value}"') from None
