"""From `jsonb` to other types, and from them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from millwheel.sql.functions.composites.json import type_of
from millwheel.sql.functions.composites.json_texts import NULL, number, scalar
from millwheel.sql.functions.numbers.integers import CHECKS
from millwheel.sql.functions.registry import (
    AS_ARGUMENT,
    AS_JSONB,
    DERIVED,
    GIVEN_AS,
    OUTPUT,
    Implementation,
    ValueRefused,
    applied,
    cast_of,
    casts,
    implements,
    inline_cast,
)

_NUMBERS = {
    "numeric": "numeric", "int2": "smallint", "int4": "integer", "int8": "bigint",
    "float4": "real", "float8": "double precision",
}  # fmt: skip


# -- from jsonb -----------------------------------------------------------------------------------


def _to_number(value: Any, shown: str) -> int | Decimal | None:
    if value is NULL:
        return None
    if type_of(value) != "number":
        raise ValueRefused(f"cannot cast jsonb {type_of(value)} to type {shown}")
    found: int | Decimal = value
    return found


@casts(("jsonb", "bool"), may_be_null=True)
def to_bool(value: Any) -> bool | None:
    if value is NULL:
        return None
    if not isinstance(value, bool):
        raise ValueRefused(f"cannot cast jsonb {type_of(value)} to type boolean")
    return value


@casts(("jsonb", "numeric"), may_be_null=True)
def to_numeric(value: Any) -> Decimal | None:
    found = _to_number(value, "numeric")
    return None if found is None else Decimal(found)


def _to_integer(kind: str) -> Callable[[Any], int | None]:
    def convert(value: Any) -> int | None:
        found = _to_number(value, _NUMBERS[kind])
        if isinstance(found, Decimal):
            found = int(found.to_integral_value(ROUND_HALF_UP))
        return None if found is None else CHECKS[kind](found)

    return convert


for _kind in ("int2", "int4", "int8"):
    casts(("jsonb", _kind), may_be_null=True)(_to_integer(_kind))


@casts(("jsonb", "float8"), may_be_null=True)
def to_float8(value: Any) -> float | None:
    found = _to_number(value, "double precision")
    return None if found is None else _float(found, "double precision", "d")


@casts(("jsonb", "float4"), may_be_null=True)
def to_float4(value: Any) -> float | None:
    found = _to_number(value, "real")
    return None if found is None else _float(found, "real", "f")


def _float(value: int | Decimal, shown: str, code: str) -> float:
    try:
        made = float(value)
        (made,) = struct.unpack(code, struct.pack(code, made))
    except OverflowError:
        made = float("inf")
    if made in (float("inf"), float("-inf")) or (value and not made):
        raise ValueRefused(f'"{scalar(value)}" is out of range for type {shown}')
    return made


# -- to jsonb -------------------------------------------------------------------------------------

inline_cast("{0}", *(
    (kind, AS_JSONB)
    for kind in ("bool", "int2", "int4", "int8", "numeric", "text", "varchar", "bpchar", "jsonb")
))  # fmt: skip


@casts(("date", AS_JSONB))
def from_date(value: date) -> str:
    return value.isoformat()


@casts(("timestamp", AS_JSONB))
def from_timestamp(value: datetime) -> str:
    text = value.isoformat()
    return text.rstrip("0") if "." in text else text


@casts(("timestamptz", AS_JSONB))
def from_timestamptz(value: datetime) -> str:
    return from_timestamp(value.replace(tzinfo=None)) + "+00:00"


def _derived(source: str, target: str) -> Implementation | None:
    if target == AS_ARGUMENT:
        return _argument(source)
    if target != AS_JSONB:
        return None
    if source.startswith("_"):
        return _from_array(source[1:])
    found = cast_of(source, "text")
    if found is None:
        return None
    shown = applied(found)
    if source in ("float4", "float8"):
        return Implementation(lambda value: number(shown(value)), "", may_be_null=False)
    return found


def _from_array(source: str) -> Implementation | None:
    found = cast_of(source, AS_JSONB)
    if found is None:
        return None
    convert = applied(found)

    def converted(array: list[Any]) -> list[Any]:
        return [NULL if each is None else convert(each) for each in array]

    return Implementation(converted, "", may_be_null=False)


class Argument(NamedTuple):
    """A value as an argument of `jsonb_build_object`."""

    value: Any
    key: str | None
    """The value as a key; None: it cannot be one."""


def _argument(source: str) -> Implementation | None:
    made = cast_of(source, AS_JSONB)
    text = cast_of(source, OUTPUT if source == "bpchar" else "text")
    if made is None or text is None:
        return None
    convert, shown = applied(made), applied(text)
    is_scalar = not source.startswith("_") and source not in ("jsonb", "json")

    def argument(value: Any) -> Argument:
        found = convert(value)
        if not is_scalar:
            return Argument(found, None)
        return Argument(found, found if isinstance(found, str) else shown(value))

    return Implementation(argument, "", may_be_null=False)


DERIVED.append(_derived)

GIVEN_AS.update({
    "to_jsonb(anyelement)": AS_JSONB, "jsonb_build_array(any)": AS_JSONB,
    "jsonb_build_object(any)": AS_ARGUMENT,
})  # fmt: skip


@implements("to_jsonb(anyelement)")
def to_jsonb(value: Any) -> Any:
    return value


@implements("jsonb_build_array()", "jsonb_build_array(any)")
def build_array(*values: Any) -> list[Any]:
    return [NULL if value is None else value for value in values]


@implements("jsonb_build_object()", "jsonb_build_object(any)")
def build_object(*arguments: Argument | None) -> dict[str, Any]:
    """An object of keys and values in turn."""
    if len(arguments) % 2:
        raise ValueRefused("argument list must have even number of elements")
    made = {}
    for place in range(0, len(arguments), 2):
        key, value = arguments[place : place + 2]
        if key is None:
            raise ValueRefused(f"argument {place + 1}: key must not be null")
        if key.key is None:
            raise ValueRefused("key value must be scalar, not array, composite, or json")
        made[key.key] = NULL if value is None else value.value
    return made
