"""The steps of a pipeline as Spark's SQL: a projection, or groups over windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Named = Sequence[tuple[str, str]]
"""Names of columns, and Spark's SQL for their values."""

WINDOW, EVENT, SEQ = "__window", "__event", "__seq"
"""Columns beside those of a stream: the window of a group, the event time, and the place of a
record in its source. No column of a query begins so."""

STREAM, MARK = "__stream", "__mark"
"""Columns of a source's rows: their stream, and the event time as Spark's watermark knows it."""


@dataclass(frozen=True)
class Projection:
    """SELECT and WHERE."""

    source: str
    target: str
    where: str | None
    columns: Named

    @property
    def text(self) -> str:
        """The step as one statement, for people."""
        return f"SELECT {_listed(self.columns)}\nFROM {self.source}{_kept(self.where)}"


@dataclass(frozen=True)
class WindowGroups:
    """Groups over windows; a row is made when the watermark has passed the window.

    Args:
        size: microseconds.
        slide: microseconds between the starts of two windows.
    """

    source: str
    target: str
    where: str | None
    size: int
    slide: int
    keys: Named
    aggregates: Named
    having: str | None
    columns: Named

    @property
    def window(self) -> str:
        """Spark's SQL for the window of a record."""
        return f"window({EVENT}, '{self.size} microseconds', '{self.slide} microseconds')"

    @property
    def text(self) -> str:
        """The step as one statement, for people."""
        made = [(WINDOW, self.window), *self.keys]
        groups = ", ".join(sql for _, sql in made)
        inner = _listed([*made, *self.aggregates])
        read = f"{self.source}{_kept(self.where)} GROUP BY {groups}"
        kept = _kept(self.having)
        return f"SELECT {_listed(self.columns)}\nFROM (SELECT {inner}\n  FROM {read}){kept}"  # noqa: S608


Step = Projection | WindowGroups


def _listed(columns: Named) -> str:
    return ", ".join(f"{sql} AS `{name}`" for name, sql in columns)


def _kept(condition: str | None) -> str:
    return "" if condition is None else f" WHERE {condition}"
