"""Places boxes in columns, with arrows from left to right that meet no box on their way.

A column has a zone for labels, then its boxes. An arrow runs level through both, at the height of
its end or of its own free lane, and changes its height only between columns: so it crosses no box
and no label. The same picture always gives the same places.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

SWEEPS = 16
"""Passes that order the items of columns, and passes that move them towards their neighbours."""


@dataclass(frozen=True)
class Space:
    """Distances in pixels."""

    between_boxes: int = 24
    between_lanes: int = 14
    between_arrows: int = 8
    least_bend: int = 44
    most_bend: int = 130
    margin: int = 16


@dataclass(frozen=True)
class Piece:
    """A box to be placed, in pixels."""

    name: str
    width: int
    height: int


@dataclass(frozen=True)
class Line:
    """An arrow to be placed; its label's size, in pixels."""

    start: str
    end: str
    width: int
    height: int


@dataclass(frozen=True)
class Rectangle:
    x: int
    y: int
    width: int
    height: int


Points = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Placed:
    """Places in pixels.

    Attributes:
        boxes: by name.
        routes: for each line, in order, points between which it bends and is level in turn. The
            first and the last one are on the borders of its boxes.
        labels: for each line, the place of its label, left of the end; its line is the middle.
    """

    width: int
    height: int
    boxes: dict[str, Rectangle]
    routes: tuple[Points, ...]
    labels: tuple[Rectangle, ...]


@dataclass(eq=False)
class _Item:
    """A box, or the lane of a line through a column that it passes."""

    height: int
    width: int = 0
    piece: Piece | None = None
    y: float = 0.0
    """Its middle."""
    before: list[_Item] = field(default_factory=list)
    after: list[_Item] = field(default_factory=list)


Columns = list[list[_Item]]


def place(pieces: Sequence[Piece], lines: Sequence[Line], space: Space = Space()) -> Placed:
    """Place boxes and lines; the lines have no circle."""
    ranks = _ranks(pieces, lines)
    arriving = {p.name: [line for line in lines if line.end == p.name] for p in pieces}
    items = {p.name: _Item(_height(p, arriving[p.name], space), p.width, p) for p in pieces}
    columns: Columns = [[] for _ in range(max(ranks.values(), default=0) + 1)]
    for piece in pieces:
        columns[ranks[piece.name]].append(items[piece.name])
    chains = [_chain(line, items, ranks, columns, space) for line in lines]
    columns = _ordered(columns)
    _spread(columns, space)
    return _Places(columns, chains, lines, space).placed()


def _height(piece: Piece, arriving: Sequence[Line], space: Space) -> int:
    """The height of a box that has room for its labels, one below the other."""
    needed = sum(line.height for line in arriving)
    return max(piece.height, needed + space.between_arrows * max(len(arriving) - 1, 0))


def _ranks(pieces: Sequence[Piece], lines: Sequence[Line]) -> dict[str, int]:
    """The column of each box: behind all that lead to it, and of a source right before the
    first."""
    ranks = {piece.name: 0 for piece in pieces}
    for _ in pieces:
        behind = {
            line.end: ranks[line.start] + 1
            for line in sorted(lines, key=lambda line: ranks[line.start])
            if ranks[line.end] <= ranks[line.start]
        }
        if not behind:
            break
        ranks |= behind
    ends = {line.end for line in lines}
    for piece in pieces:
        readers = [ranks[line.end] for line in lines if line.start == piece.name]
        if readers and piece.name not in ends:
            ranks[piece.name] = min(readers) - 1
    return ranks


def _chain(
    line: Line, items: dict[str, _Item], ranks: dict[str, int], columns: Columns, space: Space
) -> list[_Item]:
    """The items from the start of a line to its end, with new lanes in the columns between."""
    lanes = [_Item(space.between_lanes) for _ in range(ranks[line.start] + 1, ranks[line.end])]
    for number, lane in enumerate(lanes, ranks[line.start] + 1):
        columns[number].append(lane)
    chain = [items[line.start], *lanes, items[line.end]]
    for one, next_ in pairwise(chain):
        one.after.append(next_)
        next_.before.append(one)
    return chain


# -- the order in each column -------------------------------------------------------------


def _ordered(columns: Columns) -> Columns:
    """The columns, each in the order with the fewest crossings that was found."""
    best, fewest = columns, _crossings(columns)
    current = columns
    for sweep in range(SWEEPS):
        if not fewest:
            break
        current = _swept(current, forward=sweep % 2 == 0)
        found = _crossings(current)
        if found < fewest:
            best, fewest = current, found
    return best


def _swept(columns: Columns, *, forward: bool) -> Columns:
    """Each column in the order of its neighbours in the column before, or behind."""
    swept: Columns = []
    positions: dict[int, int] = {}
    for column in columns if forward else reversed(columns):
        means = {
            id(item): fmean([positions[id(one)] for one in near])
            for item in column
            if (near := item.before if forward else item.after)
        }
        free = iter(sorted((i for i in column if id(i) in means), key=lambda i: means[id(i)]))
        ordered = [next(free) if id(item) in means else item for item in column]
        positions = {id(item): number for number, item in enumerate(ordered)}
        swept.append(ordered)
    return swept if forward else swept[::-1]


def _crossings(columns: Columns) -> int:
    total = 0
    for left, right in pairwise(columns):
        positions = {id(item): number for number, item in enumerate(right)}
        ends = [sorted(positions[id(one)] for one in item.after) for item in left]
        passed: list[int] = []
        for found in ends:
            total += sum(earlier > one for one in found for earlier in passed)
            passed += found
    return total


# -- heights ------------------------------------------------------------------------------


def _spread(columns: Columns, space: Space) -> None:
    """Give each item its height in the picture, near the middle of its neighbours."""
    for column in columns:
        _settle(column, [0.0] * len(column), space)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            wished = [
                fmean([one.y for one in near])
                if (near := item.before if forward else item.after)
                else item.y
                for item in column
            ]
            _settle(column, wished, space)


def _settle(column: Sequence[_Item], wished: Sequence[float], space: Space) -> None:
    """Place items as near as possible to the wished middles, in their order, without overlap: the
    least squares, by pooling adjacent violators."""
    offsets, offset = [], 0.0
    for number, item in enumerate(column):
        if number:
            gap = space.between_boxes if item.piece or column[number - 1].piece else 0
            offset += (column[number - 1].height + item.height) / 2 + gap
        offsets.append(offset)
    pools: list[list[float]] = []
    for wish, offset in zip(wished, offsets, strict=True):
        pools.append([wish - offset])
        while len(pools) > 1 and fmean(pools[-2]) >= fmean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    starts = [fmean(pool) for pool in pools for _ in pool]
    for item, start, offset in zip(column, starts, offsets, strict=True):
        item.y = start + offset


# -- pixels -------------------------------------------------------------------------------


class _Places:
    """Turns columns of items into pixels."""

    def __init__(
        self, columns: Columns, chains: list[list[_Item]], lines: Sequence[Line], space: Space
    ) -> None:
        self._columns = columns
        self._chains = chains
        self._lines = lines
        self._space = space
        self._column_of = {id(i): number for number, column in enumerate(columns) for i in column}
        top = min((i.y - i.height / 2 for column in columns for i in column), default=0.0)
        self._shift = space.margin - top
        self._ends = self._arrivals()

    def placed(self) -> Placed:
        zones, width = self._zones()
        boxes: dict[str, Rectangle] = {}
        lowest = 0
        for column, (_, left, right) in zip(self._columns, zones, strict=True):
            for item in column:
                y = round(item.y - item.height / 2 + self._shift)
                lowest = max(lowest, y + item.height)
                if item.piece is not None:
                    boxes[item.piece.name] = Rectangle(left, y, right - left, item.height)
        routes, labels = [], []
        for number, (chain, line) in enumerate(zip(self._chains, self._lines, strict=True)):
            points = [(zones[self._column(chain[0])][2], self._y(chain[0].y))]
            for item in chain[1:-1]:
                labels_left, _, right = zones[self._column(item)]
                points += [(labels_left, self._y(item.y)), (right, self._y(item.y))]
            labels_left, left, _ = zones[self._column(chain[-1])]
            y = self._y(self._ends[number])
            routes.append((*points, (labels_left, y), (left, y)))
            labels.append(
                Rectangle(labels_left, y - line.height // 2, left - labels_left, line.height)
            )
        height = lowest + self._space.margin
        return Placed(width, height, boxes, tuple(routes), tuple(labels))

    def _column(self, item: _Item) -> int:
        return self._column_of[id(item)]

    def _y(self, y: float) -> int:
        return round(y + self._shift)

    def _arrivals(self) -> list[float]:
        """The height at which each line arrives: below one another, in the order of their
        origins."""
        arriving: dict[int, list[int]] = {}
        for number, chain in enumerate(self._chains):
            arriving.setdefault(id(chain[-1]), []).append(number)
        ends = [0.0] * len(self._chains)
        for numbers in arriving.values():
            box = self._chains[numbers[0]][-1]
            ordered = sorted(numbers, key=lambda number: self._chains[number][-2].y)
            heights = [self._lines[number].height for number in ordered]
            y = box.y - (sum(heights) + self._space.between_arrows * (len(heights) - 1)) / 2
            for number, height in zip(ordered, heights, strict=True):
                ends[number] = y + height / 2
                y += height + self._space.between_arrows
        return ends

    def _zones(self) -> tuple[list[tuple[int, int, int]], int]:
        """Of each column where its labels begin, where its boxes begin, and where they end; and the
        width of the picture."""
        zones: list[tuple[int, int, int]] = []
        x = self._space.margin
        for number, column in enumerate(self._columns):
            x += self._bend(number) if number else 0
            lines = [
                line
                for line, chain in zip(self._lines, self._chains, strict=True)
                if self._column(chain[-1]) == number
            ]
            left = x + max((line.width for line in lines), default=0)
            right = left + max((item.width for item in column), default=0)
            zones.append((x, left, right))
            x = right
        return zones, x + self._space.margin

    def _bend(self, number: int) -> int:
        """The distance to the column before, which grows with the steepest line between them."""
        rises: Iterable[float] = (
            abs(one.y - (self._ends[line] if index + 2 == len(chain) else next_.y))
            for line, chain in enumerate(self._chains)
            for index, (one, next_) in enumerate(pairwise(chain))
            if self._column(next_) == number
        )
        steepest = max(rises, default=0.0)
        space = self._space
        return min(max(space.least_bend, round(steepest / 3)), space.most_bend)
