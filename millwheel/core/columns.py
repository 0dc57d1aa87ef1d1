"""The columns of table sinks, and the stored form of their values."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Union, get_args, get_origin
from uuid import UUID

import msgspec

from millwheel.core.codec import Codec, field_hints, shown
from millwheel.core.equality import canonical_json, canonical_number, decimal_text
from millwheel.core.model import to_micros
from millwheel.core.names import check_name
from millwheel.errors import GraphError, UserCodeError

COLUMN_TYPES: dict[Any, str] = {
    str: "text",
    int: "bigint",
    float: "double precision",
    bool: "boolean",
    datetime: "timestamp with time zone",
    date: "date",
    bytes: "bytea",
    Decimal: "numeric",
    UUID: "uuid",
}

SYSTEM_COLUMNS = frozenset(("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"))

NUMBERS = ("sender", "sequence")

NO_DEFAULT: Any = msgspec.NODEFAULT


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    nullable: bool
    is_json: bool = False
    default: Any = field(default=NO_DEFAULT, compare=False)
    """The default of the row type's field."""

    @property
    def is_optional(self) -> bool:
        """Whether rows may be without a value for it."""
        return self.nullable or self.default is not NO_DEFAULT


def columns_of(table: str, row_type: Any, *, numbered: bool) -> tuple[Column, ...]:
    """`GraphError` if the type has no fields, or a name that a column cannot have."""
    origin = get_origin(row_type) or row_type
    if not isinstance(origin, type) or not (
        issubclass(origin, msgspec.Struct) or is_dataclass(origin)
    ):
        raise GraphError(f"Table({table!r}): the row type must be a msgspec.Struct or a dataclass")
    defaults = _defaults(origin)
    columns = tuple(
        _column(name, hint, defaults.get(name, NO_DEFAULT))
        for name, hint in field_hints(origin).items()
    )
    if not columns:
        raise GraphError(
            f"Table({table!r}): {row_type.__name__} has no fields, so there are no columns"
        )
    for column in columns:
        if column.name in SYSTEM_COLUMNS:
            raise GraphError(
                f"Table({table!r}): each table of Postgres has a column {column.name!r} of its own "
                f"already; rename the field of {row_type.__name__}"
            )
        if numbered and column.name in NUMBERS:
            raise GraphError(
                f"Table({table!r}): numbered=True adds the columns {' and '.join(NUMBERS)}, so "
                f"{row_type.__name__} cannot have a field {column.name!r}; rename it"
            )
    return columns


def _defaults(kind: type) -> dict[str, Any]:
    """Defaults of fields that are the same for each row, or an empty list, dict or set."""
    found: dict[str, Any] = {}
    of: Callable[[Any], Any] = (
        msgspec.structs.fields if issubclass(kind, msgspec.Struct) else fields
    )
    for each in of(kind):
        if each.default not in (msgspec.NODEFAULT, MISSING):
            found[each.name] = each.default
        elif each.default_factory in (list, dict, set, frozenset):
            found[each.name] = each.default_factory()
    return found


def _column(name: str, hint: Any, default: Any) -> Column:
    nullable = hint is Any
    if get_origin(hint) in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        nullable = len(members) < len(get_args(hint))
        hint = members[0] if len(members) == 1 else typing.Any
    column_type = COLUMN_TYPES.get(hint)
    return Column(
        check_name(name, "column"), column_type or "jsonb", nullable, column_type is None, default
    )


def stored_form(table: str, column: Column, *, in_key: bool) -> Callable[[Any], Any] | None:
    """A check that returns the value to store; None: each is stored as it is.

    Its result is None for None, which Postgres stores as NULL, in a column of JSON too.
    """
    subject = f"column {column.name!r} of table {table!r}"
    if column.is_json:
        codec: Codec[Any] = Codec(Any, what=subject)
        return lambda value: None if value is None else _json(codec, value, in_key=in_key)
    if column.type == "timestamp with time zone":
        return lambda value: _aware(value, subject)
    return None


def _json(codec: Codec[Any], value: Any, *, in_key: bool) -> str:
    encoded = codec.encode(value)
    return (canonical_json(value) if in_key else encoded).decode()


def _aware(value: Any, what: str) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        raise UserCodeError(
            f"{what}: {shown(value)} has no time zone, so the instant it means is unknown; make it "
            "aware, for example with .replace(tzinfo=timezone.utc)"
        )
    return value


KeyPart = Callable[[Any], "str | int"]

_KEY_PARTS: dict[str, KeyPart] = {
    "text": str.__str__,
    "bigint": int,
    "double precision": lambda value: str(canonical_number(float(value))),
    "boolean": int,
    "timestamp with time zone": to_micros,
    "date": date.isoformat,
    "bytea": lambda value: bytes(value).hex(),
    "numeric": lambda value: decimal_text(Decimal(repr(value)) if type(value) is float else value),
    "uuid": str,
    "jsonb": str.__str__,  # canonical as stored
}


def key_part(column: Column) -> KeyPart:
    """Parts of a key are equal if Postgres takes the values for equal, and those of a column have
    an order."""
    return _KEY_PARTS[column.type]
