"""Charts of answers: a line of SVG for each number column, by the first time column."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from markupsafe import Markup

MOST_CHARTS = 4

WIDTH, HEIGHT = 800, 160
LEFT, BOTTOM, TOP = 4, 20, 8
"""Space around the line."""

CHART = Markup(
    '<figure class="chart"><figcaption>{caption}</figcaption>'
    '<svg role="img" aria-label="{label}" viewBox="0 0 {width} {height}">'
    '<line class="axis" x1="0" x2="{width}" y1="{ground}" y2="{ground}"/>{lines}'
    '<text class="axis-text" x="0" y="{below}">{first}</text>'
    '<text class="axis-text" x="{width}" y="{below}" text-anchor="end">{last}</text>'
    "</svg></figure>"
)
LINE = Markup('<polyline class="line" points="{points}"/>')
DOT = Markup('<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')


class Point(NamedTuple):
    at: datetime
    value: float | None
    """None: a gap in the line."""


def line_charts(answer: Mapping[str, Any]) -> Markup:
    """Charts of a `millwheel.ui.pages.sql_page.Answer`, as JSON has it; empty without a time column
    and a number column with two points."""
    columns = answer["columns"]
    times = [at for at, column in enumerate(columns) if column["is_time"]]
    numbers = [at for at, column in enumerate(columns) if column["is_number"]]
    if not times:
        return Markup("")
    made = [
        chart(columns[at]["name"], sorted(_points(answer["rows"], times[0], at), key=_time))
        for at in numbers[:MOST_CHARTS]
    ]
    return Markup("").join(made)


def chart(name: str, points: list[Point]) -> Markup:
    """Of points in the order of their times."""
    values = [point.value for point in points if point.value is not None]
    if len(values) < 2 or points[0].at == points[-1].at:
        return Markup("")
    low, high = min(0.0, *values), max(0.0, *values)
    first, last = points[0].at, points[-1].at
    span, height = (last - first).total_seconds(), HEIGHT - TOP - BOTTOM

    def place(point: Point, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - 2 * LEFT) * (point.at - first).total_seconds() / span
        return x, TOP + height * (1 - (value - low) / ((high - low) or 1.0))

    parts: list[Markup] = []
    for run in _runs(points):
        places = [place(point, value) for point, value in run]
        if len(places) == 1:
            parts.append(DOT.format(x=places[0][0], y=places[0][1]))
        else:
            parts.append(LINE.format(points=" ".join(f"{x:.1f},{y:.1f}" for x, y in places)))
    caption = f"{name}: {_short(min(values))} to {_short(max(values))}"
    return CHART.format(
        caption=caption,
        label=f"{caption}, {len(values):,} points from {_when(first)} to {_when(last)}",
        width=WIDTH,
        height=HEIGHT,
        ground=f"{TOP + height * (1 - (0.0 - low) / ((high - low) or 1.0)):.1f}",
        below=HEIGHT - 4,
        lines=Markup("").join(parts),
        first=_when(first),
        last=_when(last),
    )


def _points(rows: list[list[str | None]], time: int, number: int) -> Iterator[Point]:
    """Points with a finite time."""
    for row in rows:
        try:
            at = datetime.fromisoformat(row[time] or "")
        except ValueError:  # infinity, or after the year 9999
            continue
        if at.tzinfo is not None:
            at = at.replace(tzinfo=None)  # all are in UTC
        text = row[number]
        value = math.nan if text is None else float(text)
        yield Point(at, value if math.isfinite(value) else None)


def _runs(points: list[Point]) -> Iterator[list[tuple[Point, float]]]:
    run: list[tuple[Point, float]] = []
    for point in points:
        if point.value is not None:
            run.append((point, point.value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _time(point: Point) -> datetime:
    return point.at


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def _when(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
