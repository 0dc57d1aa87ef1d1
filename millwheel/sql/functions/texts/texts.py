"""Texts: their case, parts, padding and search.

Without a place in the text a length counts characters, as in a database with UTF-8.
"""

from __future__ import annotations

from functools import lru_cache

from millwheel.sql.functions.registry import (
    OUTPUT,
    ValueRefused,
    casts,
    implements,
    inline,
    inline_cast,
    modifies,
)
from millwheel.sql.functions.texts.letters import capital, is_alphanumeric, small

LARGEST = 2**30 - 1
"""Postgres' limit of a value, in bytes."""

inline("({0} + {1})", "textcat(text,text)", "textanycat(text,anynonarray)")
inline("({0} + {1})", "anytextcat(anynonarray,text)")
inline("len({0})", "length(text)", "char_length(text)", "character_length(text)", "textlen(text)")
inline("len({0}.encode())", "octet_length(text)", "octet_length(bpchar)")
inline("(8 * len({0}.encode()))", "bit_length(text)")
inline('len({0}.rstrip(" "))', *(
    f"{name}(bpchar)" for name in ("length", "char_length", "character_length", "bpcharlen")
))  # fmt: skip
inline("({0}.find({1}) + 1)", "strpos(text,text)", "position(text,text)")
inline("{0}.startswith({1})", "starts_with(text,text)")
inline("{0}[::-1]", "reverse(text)")
inline('{0}.strip(" ")', "btrim(text)")
inline('{0}.lstrip(" ")', "ltrim(text)")
inline('{0}.rstrip(" ")', "rtrim(text)")
inline("{0}.strip({1})", "btrim(text,text)")
inline("{0}.lstrip({1})", "ltrim(text,text)")
inline("{0}.rstrip({1})", "rtrim(text,text)")


# -- case -----------------------------------------------------------------------------------------


@implements("lower(text)")
def lower(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(small, text))


@implements("upper(text)")
def upper(text: str) -> str:
    return text.upper() if text.isascii() else "".join(map(capital, text))


@implements("initcap(text)")
def initcap(text: str) -> str:
    """Words begin with a capital; they consist of letters and digits."""
    parts, inside = [], False
    for character in text:
        parts.append(small(character) if inside else capital(character))
        inside = is_alphanumeric(character)
    return "".join(parts)


# -- parts ----------------------------------------------------------------------------------------


@implements("substring(text,int4)", "substr(text,int4)")
def tail(text: str, start: int) -> str:
    return text[start - 1 :] if start > 0 else text


@implements("substring(text,int4,int4)", "substr(text,int4,int4)")
def substring(text: str, start: int, length: int) -> str:
    if length < 0:
        raise ValueRefused("negative substring length not allowed")
    return text[max(start - 1, 0) : max(start - 1 + length, 0)]


inline("{0}[:{1}]", "left(text,int4)")


@implements("right(text,int4)")
def right(text: str, count: int) -> str:
    if count == -(2**31):
        # Postgres cannot make it positive.
        return text
    return text[-count:] if count else ""


@implements("split_part(text,text,int4)")
def split_part(text: str, separator: str, field: int) -> str:
    if not field:
        raise ValueRefused("field position must not be zero")
    if not text:
        return ""
    if not separator:
        return text if field in (1, -1) else ""
    if field > 0:
        parts = text.split(separator, field)
        return parts[field - 1] if field <= len(parts) else ""
    parts = text.split(separator)
    return parts[field] if -field <= len(parts) else ""


@implements("overlay(text,text,int4,int4)")
def overlay(text: str, new: str, start: int, length: int) -> str:
    if start <= 0:
        raise ValueRefused("negative substring length not allowed")
    if not -(2**31) <= start + length < 2**31:
        raise ValueRefused("integer out of range")
    return text[: start - 1] + new + tail(text, start + length)


@implements("overlay(text,text,int4)")
def overlay_all(text: str, new: str, start: int) -> str:
    return overlay(text, new, start, len(new))


# -- other texts ----------------------------------------------------------------------------------


@implements("lpad(text,int4,text)")
def lpad(text: str, length: int, fill: str) -> str:
    return _padding(text, length, fill) + text[: max(length, 0)]


@implements("rpad(text,int4,text)")
def rpad(text: str, length: int, fill: str) -> str:
    return text[: max(length, 0)] + _padding(text, length, fill)


@implements("lpad(text,int4)")
def lpad_blank(text: str, length: int) -> str:
    return lpad(text, length, " ")


@implements("rpad(text,int4)")
def rpad_blank(text: str, length: int) -> str:
    return rpad(text, length, " ")


def _padding(text: str, length: int, fill: str) -> str:
    missing = length - len(text)
    if missing <= 0 or not fill:
        return ""
    if 4 * length > LARGEST - 4:
        raise ValueRefused("requested length too large")
    return (fill * (missing // len(fill) + 1))[:missing]


@implements("repeat(text,int4)")
def repeat(text: str, count: int) -> str:
    if count > 0 and len(text.encode()) * count > LARGEST - 4:
        raise ValueRefused("requested length too large")
    return text * count


@implements("replace(text,text,text)")
def replace(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


@implements("translate(text,text,text)")
def translate(text: str, old: str, new: str) -> str:
    return text.translate(_table(old, new))


@lru_cache(maxsize=256)
def _table(old: str, new: str) -> dict[int, str | None]:
    table: dict[int, str | None] = {}
    for place, character in enumerate(old):
        table.setdefault(ord(character), new[place] if place < len(new) else None)
    return table


@implements("ascii(text)")
def code_point(text: str) -> int:
    return ord(text[0]) if text else 0


@implements("chr(int4)")
def character(code: int) -> str:
    if code < 0:
        raise ValueRefused("character number must be positive")
    if not code:
        raise ValueRefused("null character not permitted")
    if code > 0x10FFFF:
        raise ValueRefused(f"requested character too large for encoding: {code}")
    if 0xD800 <= code < 0xE000:
        raise ValueRefused(f"requested character not valid for encoding: {code}")
    return chr(code)


# -- texts with a length --------------------------------------------------------------------------


@modifies("varchar")
def varchar(text: str, length: int) -> str:
    return text[:length]


@modifies("bpchar")
def char(text: str, length: int) -> str:
    return text[:length].ljust(length)


casts(("bool", "varchar"), ("bool", "bpchar"))(lambda value: "true" if value else "false")
inline_cast('{0}.rstrip(" ")', ("bpchar", "text"), ("bpchar", "varchar"))
inline_cast("{0}", ("varchar", "text"), ("varchar", OUTPUT), ("bpchar", OUTPUT), ("text", OUTPUT))
inline_cast("{0}", ("text", "varchar"), ("text", "bpchar"), ("text", "text"))
inline_cast('("t" if {0} else "f")', ("bool", OUTPUT))

for _name, _symbol in {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}.items():
    inline(f'({{0}}.rstrip(" ") {_symbol} {{1}}.rstrip(" "))', f"bpchar{_name}(bpchar,bpchar)")
