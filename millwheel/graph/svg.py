"""The graph as SVG, with a light and a dark form.

All text has one width a letter, in any font that a reader may have: at most 0.62 of its size. So
boxes are as wide as their text. No element has an id: pictures may share a page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from rich.cells import cell_len, set_cell_size

from millwheel.graph.layers import Line, Piece, Points, Rectangle, place
from millwheel.graph.order import Graph
from millwheel.graph.picture import Arrow, Box, BoxKind, GraphPicture

LARGE, SMALL = 13, 11
"""Sizes of the text of a box's title, and of its detail and of labels."""
LETTER = 0.62
"""Width of a letter, as a share of the size; SF Mono has the widest ones, with 0.618."""
MOST_LETTERS = 34
LEAST_WIDTH = 92
PADDING = 12
ARROW = 9
"""Length of an arrow's head."""
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True)
class Colours:
    """Colours of a picture.

    Attributes:
        boxes: for each kind of box, its area and its border.
    """

    paper: str
    text: str
    faint: str
    line: str
    boxes: Mapping[BoxKind, tuple[str, str]]


LIGHT = Colours(
    paper="#ffffff", text="#1f2328", faint="#57606a", line="#6e7781",
    boxes={
        "source": ("#e6f4ea", "#1a7f37"), "computation": ("#e7f0fd", "#0969da"),
        "relay": ("#f3f4f6", "#8c959f"), "sink": ("#fdf0dd", "#9a6700"),
        "aggregate": ("#f5ecfe", "#8250df"),
    },
)  # fmt: skip
DARK = Colours(
    paper="#0d1117", text="#e6edf3", faint="#9da7b3", line="#8b949e",
    boxes={
        "source": ("#12261b", "#3fb950"), "computation": ("#12233b", "#58a6ff"),
        "relay": ("#1b2027", "#7d8590"), "sink": ("#2b2111", "#d29922"),
        "aggregate": ("#241a35", "#bc8cff"),
    },
)  # fmt: skip
CORNERS = {"source": 16, "computation": 5, "relay": 5, "sink": 0, "aggregate": 5}


def svg(graph: Graph) -> str:
    """The graph, with sources left and sinks right of their steps."""
    picture = GraphPicture.of(graph)
    pieces = [_piece(box) for box in picture.boxes]
    placed = place(pieces, [line_of(arrow) for arrow in picture.arrows])
    body = [
        *(
            arrow_svg(*each)
            for each in zip(picture.arrows, placed.routes, placed.labels, strict=True)
        ),
        *(_box(box, placed.boxes[box.name]) for box in picture.boxes),
    ]
    return _document(f"pipeline {picture.name}", placed.width, placed.height, body)


def refusal(name: str, reason: str) -> str:
    """The reason for which a pipeline has no graph, as a picture."""
    lines = textwrap.wrap(reason, 80) or [""]
    title = f"pipeline {name} is not complete"
    width = text_width(max(lines, key=len), SMALL)
    texts = [
        f'<text class="title" x="16" y="30">{escape(title)}</text>',
        *(
            f'<text class="detail" x="16" y="{52 + 16 * number}">{escape(line)}</text>'
            for number, line in enumerate(lines)
        ),
    ]
    width = max(width, text_width(title, LARGE)) + 32
    return _document(title, width, 52 + 16 * len(lines), texts)


def _document(title: str, width: int, height: int, body: list[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="millwheel-graph" role="img" '
            f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'style="max-width: 100%; height: auto">',
            f"<title>{escape(title)}</title>",
            f"<style>{_style()}</style>",
            f'<rect class="paper" width="{width}" height="{height}" rx="6"/>',
            *body,
            "</svg>\n",
        ]
    )


def _style() -> str:
    inside = (
        f"text {{ font-family: {FONT}; }}",
        f".title {{ font-size: {LARGE}px; }}",
        f".detail, .label {{ font-size: {SMALL}px; }}",
        "path { fill: none; stroke-width: 1.3; }",
        ".by-spark path, .relay rect { stroke-dasharray: 5 3; }",
        *_colours(LIGHT),
    )
    dark = " ".join(_scoped(rule) for rule in _colours(DARK))
    light = " ".join(_scoped(rule) for rule in inside)
    return f"{light} @media (prefers-color-scheme: dark) {{ {dark} }}"


def _scoped(rule: str) -> str:
    """A rule for this picture alone, also in a page of others."""
    selectors, brace, rest = rule.partition(" {")
    return ", ".join(f".millwheel-graph {one}" for one in selectors.split(", ")) + brace + rest


def _colours(colours: Colours) -> Iterator[str]:
    yield f".paper {{ fill: {colours.paper}; }}"
    yield f"text {{ fill: {colours.text}; }}"
    yield f".detail, .manner {{ fill: {colours.faint}; }}"
    yield f"path {{ stroke: {colours.line}; }}"
    yield f"polygon {{ fill: {colours.line}; }}"
    for kind, (area, border) in colours.boxes.items():
        yield f".{kind} rect {{ fill: {area}; stroke: {border}; }}"


# -- boxes --------------------------------------------------------------------------------


def _piece(box: Box) -> Piece:
    title, detail = fitting(box.title), fitting(box.detail)
    text = max(text_width(title, LARGE), text_width(detail, SMALL))
    return Piece(box.name, max(text + 2 * PADDING, LEAST_WIDTH), 46 if detail else 34)


def _box(box: Box, at: Rectangle) -> str:
    middle, centre = at.y + at.height // 2, at.x + at.width // 2
    bar = f'<rect x="{at.x}" y="{at.y}" width="4" height="{at.height}"/>'
    known = f"{box.kind} {box.name}: {box.title}" + (f" ({box.detail})" if box.detail else "")
    parts = [
        f'<g class="box {box.kind}" data-name={quoteattr(box.name)}>',
        f"<title>{escape(printable(known))}</title>",
        f'<rect x="{at.x}" y="{at.y}" width="{at.width}" height="{at.height}" '
        f'rx="{CORNERS[box.kind]}"/>',
        bar if box.kind == "sink" else "",
        text_svg("title", fitting(box.title), centre, middle + (-2 if box.detail else 5)),
        text_svg("detail", fitting(box.detail), centre, middle + 14) if box.detail else "",
        "</g>",
    ]
    return "".join(parts)


def text_svg(kind: str, text: str, centre: int, base: int) -> str:
    """A line of text. `kind` is its class."""
    return (
        f'<text class="{kind}" x="{centre}" y="{base}" text-anchor="middle">{escape(text)}</text>'
    )


# -- arrows -------------------------------------------------------------------------------


def line_of(arrow: Arrow) -> Line:
    """The arrow as the layout takes it, with room for its texts."""
    stream, manner = fitting(arrow.stream), fitting(arrow.manner)
    text = max(text_width(stream, SMALL), text_width(manner, SMALL))
    return Line(arrow.start, arrow.end, text + ARROW + 10, 30 if manner else 18)


def arrow_svg(arrow: Arrow, route: Points, label: Rectangle) -> str:
    """An arrow with its texts, where the layout has placed it."""
    x, y = route[-1]
    centre = label.x + (label.width - ARROW) // 2
    manner = text_svg("label manner", fitting(arrow.manner), centre, y + 13) if arrow.manner else ""
    kind = "arrow by-spark" if arrow.by_spark else "arrow"
    return (
        f'<g class="{kind}" data-from={quoteattr(arrow.start)} data-to={quoteattr(arrow.end)}>'
        f"<title>{escape(printable(f'{arrow.stream} {arrow.manner}').strip())}</title>"
        f'<path d="{_path(route)}"/>'
        f'<polygon points="{x},{y} {x - ARROW},{y - 4} {x - ARROW},{y + 4}"/>'
        f"{text_svg('label', fitting(arrow.stream), centre, y - 5)}{manner}</g>"
    )


def _path(route: Points) -> str:
    """Bends and level parts in turn."""
    (x, y), *rest = route
    parts = [f"M {x} {y}"]
    for (to_x, to_y), (level_x, level_y) in zip(rest[::2], rest[1::2], strict=True):
        middle = (x + to_x) // 2
        parts.append(f"C {middle} {y} {middle} {to_y} {to_x} {to_y} L {level_x} {level_y}")
        x, y = level_x, level_y
    return " ".join(parts)


# -- text ---------------------------------------------------------------------------------


def text_width(text: str, size: int) -> int:
    """Pixels of a line of text."""
    return round(cell_len(text) * size * LETTER + 0.5)


def printable(text: str) -> str:
    """Text without the characters that XML has no form for."""
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def fitting(text: str) -> str:
    """Text that fits; the element's title has all of it."""
    shown = printable(text)
    if cell_len(shown) <= MOST_LETTERS:
        return shown
    return set_cell_size(shown, MOST_LETTERS - 1).rstrip() + "…"
