"""Why Postgres refuses a row of a table sink: the column and the value, which its error may not
name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from millwheel.core.codec import shown
from millwheel.core.columns import Column
from millwheel.sinks import Table

_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "bigint": int,
    "double precision": (float, int),
    "boolean": bool,
    "timestamp with time zone": datetime,
    "date": date,
    "bytea": bytes,
    "numeric": (Decimal, int),
    "uuid": UUID,
    "jsonb": str,
}


def refusal(table: Table[Any], values: Sequence[Any]) -> str | None:
    """None if the columns take the values of a row."""
    wrong = [_refusal(c, value) for c, value in zip(table.columns, values, strict=True)]
    return next(filter(None, wrong), None)


def refusal_of_any(table: Table[Any], columns: Sequence[Sequence[Any]]) -> str | None:
    """That of the first row that has one; the rows are given by columns."""
    return next(filter(None, (refusal(table, row) for row in zip(*columns, strict=True))), None)


def _refusal(column: Column, value: Any) -> str | None:
    if value is None:
        return None if column.nullable else f"null in column {column.name!r}"
    if not isinstance(value, _PYTHON_TYPES[column.type]):
        return f"column {column.name!r} is of type {column.type}, not {type(value).__name__}"
    if isinstance(value, str) and "\0" in value:
        return f"a NUL character in column {column.name!r}"
    if isinstance(value, int) and column.type == "bigint" and not -(1 << 63) <= value < 1 << 63:
        return (
            f"column {column.name!r} is bigint, which does not hold {shown(value, 60)}; let the "
            "field be a float, Decimal or str"
        )
    return None
