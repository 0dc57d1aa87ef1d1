"""Types of SQL, and the Python types that their values have."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID


@dataclass(frozen=True)
class SqlType:
    """A type by Postgres' own name for it.

    Args:
        name: ``int8``; for an array, ``_int8``.
        modifier: of ``numeric(10, 2)``, (10, 2); not compared, since it does not choose operators.
    """

    name: str
    modifier: tuple[int, ...] = ()

    @cached_property
    def element(self) -> SqlType | None:
        """The type of an array's elements; None: it is no array."""
        return SqlType(self.name[1:]) if self.name.startswith("_") else None

    @property
    def plain(self) -> SqlType:
        """Without its modifier."""
        return SqlType(self.name) if self.modifier else self

    def array(self) -> SqlType:
        return SqlType("_" + self.name)


BOOL, TEXT, UNKNOWN = SqlType("bool"), SqlType("text"), SqlType("unknown")
INT2, INT4, INT8 = SqlType("int2"), SqlType("int4"), SqlType("int8")
NUMERIC, FLOAT4, FLOAT8 = SqlType("numeric"), SqlType("float4"), SqlType("float8")
DATE, TIME, INTERVAL = SqlType("date"), SqlType("time"), SqlType("interval")
TIMESTAMP, TIMESTAMPTZ = SqlType("timestamp"), SqlType("timestamptz")
JSONB, UUID_, BYTEA = SqlType("jsonb"), SqlType("uuid"), SqlType("bytea")

ALIASES = {
    "bigint": "int8", "smallint": "int2", "int": "int4", "integer": "int4", "real": "float4",
    "boolean": "bool", "decimal": "numeric", "dec": "numeric", "character": "bpchar",
    "char": "bpchar", "string": "text",
}  # fmt: skip
"""Names in queries, beside Postgres' own."""

SHOWN = {
    "int8": "bigint", "int2": "smallint", "int4": "integer", "float4": "real",
    "float8": "double precision", "bool": "boolean", "varchar": "character varying",
    "bpchar": "character", "time": "time without time zone",
    "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
}  # fmt: skip

PYTHON: dict[str, Any] = {
    "bool": bool, "int2": int, "int4": int, "int8": int, "float4": float, "float8": float,
    "numeric": Decimal, "text": str, "varchar": str, "bpchar": str, "date": date, "time": time,
    "timestamp": datetime, "timestamptz": datetime, "uuid": UUID, "bytea": bytes,
    "jsonb": Any, "json": Any,
}  # fmt: skip
"""The Python type of a value; `interval` is in `millwheel.sql.functions.times.intervals`."""


def shown(kind: SqlType) -> str:
    """The name of a type in messages, as Postgres shows it."""
    if kind.element is not None:
        return shown(kind.element) + "[]"
    name = SHOWN.get(kind.name, kind.name)
    return f"{name}({','.join(map(str, kind.modifier))})" if kind.modifier else name
