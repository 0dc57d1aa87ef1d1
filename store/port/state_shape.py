"""The columns of a computation's state in SQL, with their Postgres types.

Computed when a graph is deployed, so that the store needs no types of users. The type's fingerprint
does not distinguish a time from a text, and has no order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import inspect

from millwheel.state import ListState, StateLayout

TEXT = "text"
WHOLE_NUMBER = "bigint"
JSON = "jsonb"


@dataclass(frozen=True, slots=True)
class CollectionShape:
    field: str
    is_list: bool
    entry: str
    """Postgres type of a map's keys, or of the numbers of a list's entries."""
    value: str


@dataclass(frozen=True, slots=True)
class StateShape:
    """The stored parts of a state type, under their stored names."""

    fields: tuple[tuple[str, str], ...]
    """Name and Postgres type of each plain field, in the order of declaration."""
    whole: str | None = None
    """Postgres type of a plain part without named fields: a dict, or a number."""
    collections: tuple[CollectionShape, ...] = ()


def state_shape(layout: StateLayout[Any] | None) -> StateShape | None:
    """The shape of a state type; None if the computation has no state."""
    if layout is None or layout.stateless:
        return None
    plain = inspect.type_info(layout.codec.value_type)
    collections = tuple(
        CollectionShape(
            name,
            kind is ListState,
            WHOLE_NUMBER if kind is ListState else _column_type(inspect.type_info(key_type)),
            _column_type(inspect.type_info(codec.value_type)),
        )
        for name, (kind, key_type, codec) in layout.collections.items()
    )
    named = isinstance(plain, (inspect.DataclassType, inspect.TypedDictType)) or (
        isinstance(plain, inspect.StructType) and not plain.array_like
    )
    if not named:
        return StateShape((), _column_type(plain), collections)
    fields = tuple((f.encode_name, _column_type(f.type)) for f in plain.fields)  # type: ignore[attr-defined]
    return StateShape(fields, None, collections)


def _column_type(of: inspect.Type) -> str:
    """An optional type has the Postgres type of its values."""
    match of:
        case inspect.Metadata():
            return _column_type(of.type)
        case inspect.UnionType():
            return _same(_column_type(t) for t in of.types if not isinstance(t, inspect.NoneType))
        case inspect.LiteralType():
            return _same(_type_of_value(value) for value in of.values if value is not None)
        case inspect.EnumType():
            return _same(_type_of_value(member.value) for member in of.cls)
        case inspect.StrType():
            return TEXT
        case inspect.IntType():
            return WHOLE_NUMBER
        case inspect.FloatType():
            return "double precision"
        case inspect.BoolType():
            return "boolean"
        case inspect.DateTimeType():
            return "timestamp with time zone"
        case inspect.DateType():
            return "date"
        case inspect.DecimalType():
            return "numeric"
        case inspect.UUIDType():
            return "uuid"
        case inspect.BytesType() | inspect.ByteArrayType() | inspect.MemoryViewType():
            return "bytea"
        case inspect.TimeType() | inspect.TimeDeltaType():  # as JSON has them
            return TEXT
        case _:
            return JSON


def _type_of_value(value: Any) -> str:
    return TEXT if isinstance(value, str) else WHOLE_NUMBER if isinstance(value, int) else JSON


def _same(types: Iterable[str]) -> str:
    """``jsonb`` if they differ."""
    found = set(types)
    return found.pop() if len(found) == 1 else JSON
