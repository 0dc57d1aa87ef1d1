"""The data model of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Ratio(NamedTuple):
    """A figure that is comparable between machines."""

    what: str
    """Description of both sides."""
    found: float | None
    """The measured ratio; None: the condition was never reached."""
    asked: str = ""
    """The required value, or its meaning."""


class Line(NamedTuple):
    """A line of a chart."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """A chart of lines or of bars."""

    name: str
    """Name of its file, without the ending."""
    title: str
    x: str
    """Label of the x axis, with its unit."""
    y: str
    lines: Sequence[Line] = ()
    bars: Sequence[tuple[str, float]] = ()
    log_x: bool = False
    log_y: bool = False
    mark: tuple[str, float] | None = None
    """Label and value of a reference line."""


@dataclass(frozen=True)
class Table:
    """A table of absolute figures."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Section:
    """The report's section on one part."""

    title: str
    ratios: list[Ratio] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
