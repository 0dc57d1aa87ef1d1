"""What a report is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Ratio(NamedTuple):
    """A figure that means the same on another machine."""

    what: str
    found: float | None
    asked: str = ""
    """What it should be, if anything is asked."""


class Line(NamedTuple):
    """One line of a chart."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """Lines over an axis, or bars if there are names instead."""

    name: str
    """Of its file, without the ending."""
    title: str
    x: str
    """What the axis shows, with its unit."""
    y: str
    lines: Sequence[Line] = ()
    bars: Sequence[tuple[str, float]] = ()
    log_x: bool = False
    log_y: bool = False
    mark: tuple[str, float] | None = None
    """A level to compare with, and what it is."""


@dataclass(frozen=True)
class Table:
    """Absolute figures."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Section:
    """What is told of one part."""

    title: str
    ratios: list[Ratio] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
