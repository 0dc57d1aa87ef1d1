"""A rate over the last minutes, as a small SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from millwheel.core.quantities import duration

WIDTH, HEIGHT = 120, 22
MARGIN = 2
GAP_SECONDS = 20.0
"""A longer time without a look breaks the line."""

Point = tuple[float, float]
"""Seconds ago, and a rate; see `millwheel.ui.rate_history.RatePoint`."""


def sparkline(points: Sequence[Point]) -> Markup:
    """Lines of points, the oldest of which is left; nothing for fewer than two points."""
    if len(points) < 2:
        return Markup("")
    span = points[0][0] or 1.0
    most = max(rate for _, rate in points)
    lines = []
    for part in _parts(points):
        places = [_place(point, span, most or 1.0) for point in part]
        drawn = " ".join(f"{x},{y}" for x, y in _thinned(places))
        if len(places) == 1:
            drawn += f" {places[0][0] + 1},{places[0][1]}"  # a point that can be seen
        lines.append(Markup('<polyline points="{}"/>').format(drawn))
    label = (
        f"rate over the last {duration(span)}: from {points[0][1]:,.1f}/s to "
        f"{points[-1][1]:,.1f}/s, at most {most:,.1f}/s"
    )
    return Markup(
        '<svg class="sparkline" role="img" aria-label="{label}" width="{width}" '
        'height="{height}" viewBox="0 0 {width} {height}"><title>{label}</title>{lines}</svg>'
    ).format(label=label, width=WIDTH, height=HEIGHT, lines=Markup("").join(lines))


def _parts(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Runs of points without a gap between them."""
    part: list[Point] = []
    for point in points:
        if part and part[-1][0] - point[0] > GAP_SECONDS:
            yield part
            part = []
        part.append(point)
    yield part


def _place(point: Point, span: float, top: float) -> tuple[int, int]:
    ago, rate = point
    x = MARGIN + round((span - ago) / span * (WIDTH - 2 * MARGIN))
    y = HEIGHT - MARGIN - round(rate / top * (HEIGHT - 2 * MARGIN))
    return x, y


def _thinned(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points without those on a level line between two others."""
    return [
        place
        for number, place in enumerate(places)
        if number in (0, len(places) - 1)
        or not places[number - 1][1] == place[1] == places[number + 1][1]
    ]
