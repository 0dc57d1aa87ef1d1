"""ORDER BY, as keys by which Python sorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.sql.generating import Generator
from millwheel.sql.types import SqlType

_NEGATED = ("int2", "int4", "int8", "float4", "float8")


class Descending:
    """A value that sorts the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: Descending) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descending) and bool(other.value == self.value)

    __hash__ = None  # type: ignore[assignment]


class OrderPart:
    """A part of ORDER BY; `code` is the Python for its value, without effects."""

    def __init__(
        self, code: str, kind: SqlType, *, nullable: bool, descending: bool, nulls_first: bool
    ) -> None:
        self._code = code
        self._kind = kind
        self._nullable = nullable
        self._descending = descending
        self._nulls_first = nulls_first

    def key(self, generator: Generator) -> str:
        """The Python for one or two items of a sort key."""
        code = self._code
        value = code
        if self._descending:
            value = (
                f"-{code}"
                if self._kind.name in _NEGATED
                else f"{generator.name('Descending', Descending)}({code})"
            )
        if not self._nullable:
            return value
        null, other = (0, 1) if self._nulls_first else (1, 0)
        return f"*(({null}, None) if {code} is None else ({other}, {value}))"


def order_key(parts: Sequence[OrderPart], generator: Generator) -> str:
    """The Python for a tuple by which rows are sorted."""
    return f"({''.join(f'{part.key(generator)}, ' for part in parts)})"
