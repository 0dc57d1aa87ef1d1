"""Values after a round trip through the store, and the types in which they may be others.

State is JSON in a ``jsonb`` column. The entries of a dict come in another order, a `ZoneInfo` comes
as a fixed offset, an offset with seconds is rounded, a tuple in a field of type `Any` comes as a
list, and minus zero comes as zero. User code must not see one value until a restart and another
after it, so memory keeps the value that a restart would read (`millwheel.core.codec.Codec.settle`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from math import copysign
from typing import Any

import msgspec
from msgspec import inspect

from millwheel.core.equality import NEVER_MINUS_ZERO

_encode_in_order = msgspec.json.Encoder(order="deterministic").encode
_decode_any = msgspec.json.Decoder().decode
_ODD_NUMBER = re.compile(rb"-0\.0|[0-9][eE]\+?[0-9]")
"""Minus zero, or a number with an exponent: ``jsonb`` writes 1e16 with all its digits, as a whole
number."""

MINUS_ZERO = b"-0.0"

_IN_NO_ORDER = (
    inspect.DictType,
    inspect.TypedDictType,
    inspect.AnyType,
    inspect.RawType,
    inspect.CustomType,
)
_NOT_AS_STORED = (*_IN_NO_ORDER, inspect.DateTimeType, inspect.TimeType)


def may_come_reordered(info: inspect.Type) -> bool:
    """Parts may be in an order that the store does not keep, or of no fixed type."""
    return any(isinstance(part, _IN_NO_ORDER) or _is_any_number(part) for part in parts_of(info))


class Fidelity(IntEnum):
    """How far values equal those that are read from the store, in all that user code can see."""

    NONE = 0
    BUT_MINUS_ZERO = 1
    FULL = 2


def fidelity(info: inspect.Type) -> Fidelity:
    """Proven from the type's parts alone."""
    found = Fidelity.FULL
    for part in parts_of(info, _parts_but_sums):
        if isinstance(part, _NOT_AS_STORED) or _is_any_number(part):
            return Fidelity.NONE
        if hasattr(getattr(part, "cls", None), "__post_init__"):
            return Fidelity.NONE
        if isinstance(part, inspect.FloatType):
            found = Fidelity.BUT_MINUS_ZERO
    return found


def _parts_but_sums(info: inspect.Type) -> Iterable[inspect.Type]:
    is_sum = isinstance(info, inspect.Metadata) and NEVER_MINUS_ZERO in (info.extra or ())
    return () if is_sum else parts(info)


def _is_any_number(info: inspect.Type) -> bool:
    kinds = set(map(type, info.types)) if isinstance(info, inspect.UnionType) else set()
    return {inspect.IntType, inspect.FloatType} <= kinds


def parts(info: inspect.Type) -> Iterable[inspect.Type]:
    for name in info.__struct_fields__:
        value = getattr(info, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, inspect.Field):
                yield part.type
            elif isinstance(part, inspect.Type):
                yield part


def parts_of(
    info: inspect.Type, parts: Callable[[inspect.Type], Iterable[inspect.Type]] = parts
) -> Iterator[inspect.Type]:
    todo, seen = [info], set()
    while todo:
        part = todo.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            todo += parts(part)


def are_in_order(encoded: Sequence[bytes], values: Sequence[Any]) -> bool:
    """Cheaper than `in_order`; true if that certainly changes nothing."""
    try:
        if list(map(_encode_in_order, values)) != encoded:
            return False
    except (TypeError, ValueError, msgspec.MsgspecError):  # a dict with keys that are no str
        return False
    return _ODD_NUMBER.search(b" ".join(encoded)) is None


def in_order(encoded: bytes) -> bytes:
    """One text for all texts that are equal to the store: ordered names, numbers as ``jsonb`` has
    them."""
    value = _decode_any(encoded)
    if _ODD_NUMBER.search(encoded):
        value = _with_numbers_of_jsonb(value)
    return _encode_in_order(value)


def _with_numbers_of_jsonb(value: Any) -> Any:
    match value:
        case float():
            return int(Decimal(repr(value))) if abs(value) >= 1e16 else value or 0.0
        case list():
            return [_with_numbers_of_jsonb(item) for item in value]
        case dict():
            return {name: _with_numbers_of_jsonb(item) for name, item in value.items()}
    return value


def first_difference(before: Any, after: Any, place: str = "") -> str | None:
    """Where and how a value differs from the one that was read back; None: in nothing.

    The order of dicts and sets does not count.
    """
    if type(before) is not type(after):
        return _difference(before, after, place)
    named: Callable[[Any], Iterable[str]] | None = _field_names_of(before)
    if named is not None:
        pairs = ((f"{place}.{n}", getattr(before, n), getattr(after, n)) for n in named(before))
    elif isinstance(before, dict):
        pairs = ((f"{place}[{name!r}]", item, after.get(name)) for name, item in before.items())
    elif isinstance(before, (list, tuple)) and len(before) == len(after):
        pairs = ((f"{place}[{n}]", *both) for n, both in enumerate(zip(before, after, strict=True)))
    else:
        return None if _are_same(before, after) else _difference(before, after, place)
    return next(filter(None, (first_difference(a, b, where) for where, a, b in pairs)), None)


def _field_names_of(value: Any) -> Callable[[Any], Iterable[str]] | None:
    if isinstance(value, msgspec.Struct):
        return lambda struct: struct.__struct_fields__
    return (
        (lambda made: made.__dataclass_fields__) if hasattr(value, "__dataclass_fields__") else None
    )


def _are_same(before: Any, after: Any) -> bool:
    if isinstance(before, float):
        return before == after and copysign(1, before) == copysign(1, after)
    if isinstance(before, (datetime, time)):
        return before == after and bool(_zone(before) == _zone(after))
    return isinstance(before, Enum) or bool(before == after)


def _zone(moment: datetime | time) -> Any:
    """UTC by whatever name, a fixed offset, or a zone with changing offsets."""
    zone, offset = moment.tzinfo, moment.utcoffset()
    return offset if zone is None or zone.utcoffset(None) == offset else zone


def _difference(before: Any, after: Any, place: str) -> str:
    return (
        f"{place.removeprefix('.') or 'it'} is {before!r:.200} in memory, and {after!r:.200} when "
        "it is read again"
    )
