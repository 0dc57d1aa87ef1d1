"""The filters of a read: the rows that Postgres returns.

As in pyarrow and ``pandas.read_parquet``: a list of ``(column, operator, value)``, all of which
must hold. Operators are ``= == != <> < <= > >=``; with a list as value ``in`` and ``not in``; with
None ``=`` and ``!=`` (IS NULL, IS NOT NULL).

They reach Spark's workers as the text of an option: JSON, with each value as Postgres writes it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from typing import TypeAlias
from uuid import UUID

import msgspec

from millwheel.errors import UsageError

Scalar: TypeAlias = str | int | float | bool | Decimal | dt.datetime | dt.date | bytes | UUID
Filter: TypeAlias = tuple[str, str, Scalar | list[Scalar] | None]

WrittenFilter: TypeAlias = tuple[str, str, str | list[str] | None]


def written(filters: Iterable[Filter]) -> str:
    """The option's text for filters.

    A column with a time zone takes a datetime without one as UTC.
    """
    return msgspec.json.encode(
        [
            (column, operator, [*map(_text, value)] if isinstance(value, list) else _text(value))
            for column, operator, value in filters
        ]
    ).decode()


def parsed(option: str) -> list[WrittenFilter]:
    try:
        return msgspec.json.decode(option, type=list[WrittenFilter])
    except msgspec.MsgspecError as error:
        raise UsageError(
            f'the option \'filters\' is not JSON like [["column", ">", "5"]]: {error}'
        ) from error


def _text(value: Scalar | list[Scalar] | None) -> str | None:
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal() | UUID():
            return str(value)
        case dt.date():  # and datetime
            return value.isoformat()
        case bytes():
            return f"\\x{value.hex()}"
    raise UsageError(f"a filter cannot compare with {value!r}, a {type(value).__name__}")
