"""The columns of a stream, by the type of its values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from keyword import iskeyword
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

import msgspec

from millwheel.core.codec import field_hints
from millwheel.errors import SqlError
from millwheel.sql.place import Place
from millwheel.sql.types import PYTHON, SqlType, shown

_KINDS: dict[Any, str] = {
    bool: "bool", int: "int8", float: "float8", str: "text", Decimal: "numeric", date: "date",
    datetime: "timestamptz", time: "time", UUID: "uuid", bytes: "bytea",
}  # fmt: skip


SQL = "sql"
"""The key of a field's `msgspec.Meta` under which the name of its SQL type is."""


NOT_HELD = ("interval", "json", "jsonb")
"""Types that expressions may have, and fields of a struct may not."""


@dataclass(frozen=True)
class Field:
    """A column."""

    name: str
    type: SqlType | None
    """None: its Python type has no counterpart, so queries cannot use it."""
    nullable: bool
    shown: str
    """The Python type, for messages."""


def fields_of(value_type: Any) -> list[Field] | None:
    """The columns of a type of values; None: it has no fields."""
    kind = get_origin(value_type) or value_type
    if not isinstance(kind, type) or not (
        issubclass(kind, msgspec.Struct) or hasattr(kind, "__dataclass_fields__")
    ):
        return None
    return [
        _field(name, hint) for name, hint in field_hints(value_type, include_extras=True).items()
    ]


def _field(name: str, hint: Any) -> Field:
    kind, nullable = sql_type_of(hint)
    return Field(name, kind, nullable, getattr(hint, "__name__", str(hint)))


def sql_type_of(hint: Any) -> tuple[SqlType | None, bool]:
    """The type of a value that may be None, and whether it may."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    inner = [part for part in parts if part is not NoneType]
    return _kind(inner[0]) if len(inner) == 1 else None, NoneType in parts


def _kind(hint: Any) -> SqlType | None:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *notes = get_args(hint)
        named = [note.extra[SQL] for note in notes if SQL in (getattr(note, "extra", None) or ())]
        return SqlType(named[0]) if named else _kind(inner)
    if origin is Literal:
        kinds = {type(value) for value in get_args(hint)}
        return _kind(kinds.pop()) if len(kinds) == 1 else None
    if origin is list:
        element, _ = sql_type_of(get_args(hint)[0])
        return None if element is None or element.element else element.array()
    name = _KINDS.get(hint) if isinstance(hint, type) else None
    return None if name is None else SqlType(name)


def python_type(kind: SqlType, *, nullable: bool) -> Any:
    """The type of a struct's field that holds values of a column."""
    element = kind.element
    found = _annotated(kind if element is None else element)
    if element is not None:
        found = list[found | None]  # type: ignore[valid-type]
    return found | None if nullable and found is not Any else found


def _annotated(kind: SqlType) -> Any:
    """The Python type, which remembers an SQL type that is not the usual one for it."""
    found = PYTHON[kind.name]
    if found is Any or _KINDS.get(found) == kind.name:
        return found
    return Annotated[found, msgspec.Meta(extra={SQL: kind.name})]


def struct_of(
    name: str, columns: Sequence[tuple[str, SqlType, bool]], *, may_be_missing: bool = False
) -> type[msgspec.Struct]:
    """A type of values with these columns: name, type, and whether NULL may occur.

    Args:
        may_be_missing: whether a field that may be NULL may be left out.
    """
    fields: list[Any] = []
    for column, kind, nullable in columns:
        hint = python_type(kind, nullable=nullable)
        fields.append((column, hint, None) if nullable and may_be_missing else (column, hint))
    title = "".join(part.capitalize() for part in name.split("_")) or "Row"
    made: type[msgspec.Struct] = msgspec.defstruct(
        title, fields, frozen=True, gc=False, kw_only=may_be_missing
    )
    return made


def check_name(name: str, others: Collection[str], place: Place) -> None:
    """Refuse a name that no field of a struct can have.

    Args:
        others: the names of the other columns.

    Raises:
        SqlError: it is there twice, or is no such name.
    """
    if name in others:
        raise SqlError(f'the column "{name}" is there twice', place, f"Rename one: ... AS {name}_2")
    if not name.isidentifier() or name.startswith("_") or iskeyword(name):
        raise SqlError(
            f'"{name}" cannot name a column',
            place,
            "Use letters, digits and underscores, with a letter first, and no word of Python",
        )


def check_held(kind: SqlType, place: Place) -> None:
    """Refuse a type that no field of a struct can have.

    Raises:
        SqlError: it is one of `NOT_HELD`.
    """
    name = kind.name.removeprefix("_")
    if name in NOT_HELD:
        advice = "extract(epoch FROM ...)" if name == "interval" else "::text, or ->> 'field'"
        raise SqlError(f"a column cannot have the type {shown(kind)}", place, f"Use {advice}")
