"""Values at the limits of the types that queries have in Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

TEXTS = [
    None, "", "a", "A", "ab", "b", " a ", "ä", "\uffff", "\U0001f600", "e\u0301", "o'neil", "\\n",
    "${x}", 'x"y', "a" * 40, "true", "0",
]  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "int2": [None, 0, 1, -1, 2, 7, -7, 180, 2**15 - 1, -(2**15)],
    "int4": [None, 0, 1, -1, 2, 7, -7, 46341, 2**31 - 1, -(2**31)],
    "int8": [None, 0, 1, -1, 2, 7, -7, 3_037_000_500, 2**63 - 1, -(2**63)],
    "float8": [None, 0.0, -0.0, 1.5, -1.5, 1e308, -1e308, 5e-324, 0.1],
    "text": TEXTS,
    "bool": [None, True, False],
    "date": [None, date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), date(2024, 2, 29)],
    "timestamptz": [
        None, datetime(1970, 1, 1, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC),
        datetime(2024, 3, 31, 1, 30, 0, 1, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC),
    ],
    "numeric": [None, Decimal(0), Decimal(1), Decimal(-1), Decimal(2**63), Decimal(-(10**27))],
}  # fmt: skip
COLUMNS = {
    "e": "int2", "s": "int2", "c": "int4", "d": "int4", "a": "int8", "b": "int8", "t": "text",
    "u": "text", "p": "bool", "q": "bool", "f": "float8", "g": "float8", "w": "timestamptz",
    "x": "timestamptz", "y": "date", "z": "date", "n": "numeric", "m": "numeric",
}  # fmt: skip
BY_KIND = {kind: [name for name, of in COLUMNS.items() if of == kind] for kind in VALUES}


def shown(value: Any) -> Any:
    """With the kinds of zero, and of numbers, told apart."""
    if isinstance(value, datetime):
        value = value.astimezone(UTC)
    return type(value).__name__, str(value)
