"""A place in the text of a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from millwheel.errors import SqlError


@dataclass(frozen=True)
class Place:
    """Where a part of a query begins."""

    text: str
    """The whole text."""
    offset: int
    """In characters."""

    @property
    def line(self) -> int:
        """Counted from 1."""
        return self.text.count("\n", 0, self.offset) + 1

    @property
    def column(self) -> int:
        """Counted from 1."""
        return self.offset - self.text.rfind("\n", 0, self.offset)

    def underlined(self) -> str:
        """The line, with a mark below the place."""
        line = self.text.split("\n")[self.line - 1]
        return f"{line}\n{' ' * (self.column - 1)}^"


def fail(place: Place, reason: str, advice: str = "") -> NoReturn:
    """Raises:
    SqlError: always.
    """
    raise SqlError(reason, place, advice)
