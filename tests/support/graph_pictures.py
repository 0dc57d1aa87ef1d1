"""Reads the picture of a graph, and checks that boxes, arrows and texts are where they belong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from xml.etree import ElementTree

from rich.cells import cell_len

from millwheel.graph.layers import Rectangle
from millwheel.graph.svg import LARGE, SMALL

SVG = "{http://www.w3.org/2000/svg}"
WIDEST_LETTER = 0.618
"""Share of the size, in SF Mono, the widest font that the picture names."""


@dataclass(frozen=True)
class DrawnArrow:
    start: str
    end: str
    points: list[tuple[int, int]]
    texts: list[str]


@dataclass(frozen=True)
class Drawn:
    boxes: dict[str, Rectangle]
    titles: dict[str, str]
    kinds: dict[str, str]
    arrows: list[DrawnArrow]
    root: ElementTree.Element


def read(picture: str) -> Drawn:
    root = ElementTree.fromstring(picture)
    boxes, titles, kinds, arrows = {}, {}, {}, []
    for group in root.iter(f"{SVG}g"):
        texts = ["".join(text.itertext()) for text in group.iter(f"{SVG}text")]
        if "data-name" in group.attrib:
            rect = next(iter(group.iter(f"{SVG}rect"))).attrib
            name = group.attrib["data-name"]
            boxes[name] = Rectangle(*(int(rect[side]) for side in ("x", "y", "width", "height")))
            kinds[name], titles[name] = group.attrib["class"].split()[1], texts[0]
        else:
            path = next(iter(group.iter(f"{SVG}path"))).attrib["d"]
            numbers = [int(number) for number in re.findall(r"-?\d+", path)]
            points = list(zip(numbers[::2], numbers[1::2], strict=True))
            start, end = group.attrib["data-from"], group.attrib["data-to"]
            arrows.append(DrawnArrow(start, end, points, texts))
    return Drawn(boxes, titles, kinds, arrows, root)


def overlap(one: Rectangle, other: Rectangle) -> bool:
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def check_picture(picture: str) -> Drawn:
    drawn = read(picture)
    width, height = (int(drawn.root.attrib[side]) for side in ("width", "height"))
    for one, other in combinations(drawn.boxes.values(), 2):
        assert not overlap(one, other)
    for box in drawn.boxes.values():
        assert 0 < box.x < box.x + box.width < width
        assert 0 < box.y < box.y + box.height < height
    for arrow in drawn.arrows:
        start, end = drawn.boxes[arrow.start], drawn.boxes[arrow.end]
        (x, y), (to_x, to_y) = arrow.points[0], arrow.points[-1]
        assert (x, to_x) == (start.x + start.width, end.x)
        assert start.y < y < start.y + start.height
        assert end.y < to_y < end.y + end.height
        assert arrow.texts
    for group in drawn.root.iter(f"{SVG}g"):
        if "data-name" in group.attrib:
            box = drawn.boxes[group.attrib["data-name"]]
            for text in group.iter(f"{SVG}text"):
                size = LARGE if text.attrib["class"] == "title" else SMALL
                assert cell_len(text.text or "") * size * WIDEST_LETTER < box.width - 8
    return drawn
