"""The graph of a pipeline as SVG, with the figures of the moment in its boxes.

Placed as `millwheel graph` places it (`millwheel.graph.layers`). Colours come from the style of the
pages: the picture has classes and no style of its own. It is drawn of the figures of the page
`millwheel.ui.pages.steps_page`, as they are in its JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from markupsafe import Markup, escape

from millwheel.core.quantities import byte_text, duration, per_second_text, short_duration
from millwheel.graph.layers import Piece, Placed, Rectangle, place
from millwheel.graph.picture import Arrow, Box
from millwheel.graph.svg import (
    CORNERS,
    LARGE,
    PADDING,
    SMALL,
    arrow_svg,
    fitting,
    line_of,
    text_svg,
    text_width,
)

Figures = Mapping[str, Any]

STEP_HEIGHT = 70
SINK_HEIGHT = 44
LEAST_WIDTH = text_width("0" * 30, SMALL) + 2 * PADDING
"""Figures change, and the places of boxes should not."""
KEPT_LAYOUTS = 32

IN_COMMITS = "written in its commits"
"""Of a sink that is no step."""


def live_graph(figures: Figures, address: Callable[..., str]) -> Markup:
    """The picture of a pipeline's steps; each leads to the page that says why it is late.

    Args:
        address: makes the address of a page of the pipeline, by its name and filters.
    """
    boxes = tuple(Box(**box) for box in figures["boxes"])
    arrows = tuple(Arrow(**arrow) for arrow in figures["arrows"])
    steps = {one["name"]: one for one in figures["computations"]}
    placed = _placed(boxes, arrows, frozenset(steps))
    parts = [arrow_svg(*each) for each in zip(arrows, placed.routes, placed.labels, strict=True)]
    for box in boxes:
        at = placed.boxes[box.name]
        step = steps.get(box.name)
        if step is None:
            parts.append(_drawn(box, at, [IN_COMMITS], []))
            continue
        lines = _lines(step, figures)
        marks = figures["marks"].get(box.name, [])
        told = escape(f"{box.title}: {', '.join([*marks, *lines])}. Why is it late?")
        link = escape(address("late", step=box.name))
        drawn = _drawn(box, at, lines, marks)
        parts.append(f'<a href="{link}" aria-label="{told}">{drawn}</a>')
    label = escape(f"the graph of {figures['name']}; the table below has the same figures")
    # All texts of strangers are escaped where they are put in.
    return Markup(  # noqa: S704
        f'<svg class="live-graph" role="group" aria-label="{label}" width="{placed.width}" '
        f'height="{placed.height}" viewBox="0 0 {placed.width} {placed.height}">'
        f"{''.join(parts)}</svg>"
    )


@lru_cache(maxsize=KEPT_LAYOUTS)
def _placed(boxes: tuple[Box, ...], arrows: tuple[Arrow, ...], steps: frozenset[str]) -> Placed:
    pieces = [
        Piece(
            box.name,
            max(text_width(fitting(box.title), LARGE) + 2 * PADDING, LEAST_WIDTH),
            STEP_HEIGHT if box.name in steps else SINK_HEIGHT,
        )
        for box in boxes
    ]
    return place(pieces, [line_of(arrow) for arrow in arrows])


def _drawn(box: Box, at: Rectangle, lines: Sequence[str], marks: Sequence[str]) -> str:
    centre = at.x + at.width // 2
    first = at.y + at.height // 2 - (16 * len(lines)) // 2 + 4
    bar = f'<rect x="{at.x}" y="{at.y}" width="4" height="{at.height}"/>'
    kind = f"box {box.kind}" + (" marked" if marks else "")
    return "".join(
        [
            f'<g class="{kind}"><title>{escape(box.kind)} {escape(box.title)}</title>',
            f'<rect x="{at.x}" y="{at.y}" width="{at.width}" height="{at.height}" '
            f'rx="{CORNERS[box.kind]}"/>',
            bar if box.kind == "sink" else "",
            text_svg("title", fitting(box.title), centre, first),
            *(
                text_svg("detail", fitting(line), centre, first + 16 * number)
                for number, line in enumerate(lines, 1)
            ),
            _badge(marks, at) if marks else "",
            "</g>",
        ]
    )


def _badge(marks: Sequence[str], at: Rectangle) -> str:
    """Words over the upper border of a box."""
    text = fitting(f"! {', '.join(marks)}")
    width = text_width(text, SMALL) + 12
    x = at.x + (at.width - width) // 2
    return (
        f'<g class="mark"><rect x="{x}" y="{at.y - 10}" width="{width}" height="18" rx="9"/>'
        f"{text_svg('detail', text, x + width // 2, at.y + 3)}</g>"
    )


def _lines(step: Figures, figures: Figures) -> list[str]:
    """Rate and waiting records; lag and time of user code."""
    rate = step["per_second"]
    lag, code = step["lag_seconds"], step["user_code"]
    left = next((one for one in figures["sources"] if one["step"] == step["name"]), None)
    first = ["" if rate is None else per_second_text(rate)]
    second = ["" if lag is None else f"lag {duration(lag)}"]
    if left is not None:
        first.append(_left(left))
        seconds = left["seconds_left"]
        second.append("" if seconds is None else f"{duration(seconds)} left")
    else:
        undelivered = next((one for one in figures["sinks"] if one["step"] == step["name"]), None)
        first.append(
            f"{step['backlog']:,} waiting"
            if undelivered is None
            else f"{undelivered['records']:,} undelivered"
        )
        second.append("" if code is None else f"{short_duration(code['mean'])} code")
    if step["low_watermark"] == "infinity":
        second[0] = "event time has ended"
    return [" · ".join(part for part in line if part) for line in (first, second)]


def _left(left: Figures) -> str:
    if left["ended"] == left["partitions"]:
        return "read to its end"
    if left["rows_left"] is not None:
        return f"{left['rows_left']:,} rows left"
    if left["bytes_left"] is not None:
        return f"{byte_text(left['bytes_left'])} left"
    return "unknown left"
