"""Tables in the style of psql, which fit a terminal.

A table that is wider than its terminal gives way in this order, until it fits:

1. columns of its `Fit` that are empty, or 0 in each row, are left out;
2. long texts are cut, down to `CUT_TO` cells;
3. further columns of the `Fit` are left out, the first one first;
4. the rows are stacked: a line for each column, with whole texts in further lines.

A last line names the columns that were left out. A pipe has the whole table.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Literal, NamedTuple

import typer
from rich.cells import cell_len

from millwheel.cli.printing import escaped_line, shortened, tell
from millwheel.cli.terminal import styled, width_of

CUT_TO = 20
"""Cells of a text that is cut; numbers and headings are whole."""

BESIDE = " | "
"""Between the cells of a line."""

LEAST_TEXT = 10
"""Cells for texts beside the names of stacked columns, on any terminal."""


class Styled(NamedTuple):
    """A cell with a style of `millwheel.cli.terminal.STYLES`."""

    text: str
    style: str | None


Cell = str | Styled | None


@dataclass(frozen=True)
class Fit:
    """How a table may give way on a narrow terminal."""

    drop: Sequence[str] = ()
    """Columns that may be left out, the first one first."""
    elsewhere: Sequence[str] = ()
    """Columns of these that a caller prints in other lines if there is no room for them."""
    cut: bool = True
    """Whether long texts may be cut."""


WHOLE = Fit(cut=False)


@dataclass(frozen=True)
class Layout:
    """A table of some columns and widths, or a stack."""

    columns: list[str]
    rows: list[list[Styled]]
    widths: list[int]
    dropped: tuple[str, ...] = ()
    """Columns that were left out."""
    idle: frozenset[str] = frozenset()
    """Those of them that were empty, or 0 in each row."""
    stacked: bool = False

    @property
    def width(self) -> int:
        """Cells of the rule below the header, the longest line."""
        return sum(self.widths) + len(BESIDE) * (len(self.widths) - 1) + 2

    def without(self, names: Collection[str]) -> Layout:
        kept = [place for place, name in enumerate(self.columns) if name not in names]
        return replace(
            self,
            columns=[self.columns[place] for place in kept],
            rows=[[row[place] for place in kept] for row in self.rows],
            widths=[self.widths[place] for place in kept],
            dropped=(*self.dropped, *(name for name in self.columns if name in names)),
        )

    def stacked_if(self, expanded: Literal["auto", "on", "off"], width: int | None) -> Layout:
        """The table as ``\\x`` of psql has it: auto stacks one that is wider than the terminal."""
        if expanded == "auto":
            return replace(self, stacked=width is not None and self.width > width)
        return replace(self, stacked=expanded == "on")

    def lines(self, width: int | None = None) -> Iterator[str]:
        """The lines, of which a stack is folded at `width`."""
        if self.stacked:
            yield from _stack(self, width)
            return
        header = [Styled(name, "heading") for name in self.columns]
        yield f" {BESIDE.join(map(_cell, header, self.widths, repeat(False)))}".rstrip()
        yield f"-{'-+-'.join('-' * width for width in self.widths)}-"
        to_the_right = self.numeric
        for row in self.rows:
            yield f" {BESIDE.join(map(_cell, row, self.widths, to_the_right))}".rstrip()

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers only."""
        return [
            bool(self.rows) and all(_is_number(row[place].text) for row in self.rows
                                    if row[place].text)
            for place in range(len(self.columns))
        ]  # fmt: skip


def layout(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    width: int | None = None,
    fit: Fit = WHOLE,
) -> Layout:
    """Lay a table out for a terminal of a width; None: as wide as it is."""
    cells = [[_of(value) for value in row] for row in rows]
    widths = [
        max(cell_len(name), *(cell_len(row[place].text) for row in cells), 0)
        for place, name in enumerate(columns)
    ]
    whole = Layout(list(columns), cells, widths)
    return whole if width is None or whole.width <= width else _narrowed(whole, width, fit)


def _narrowed(whole: Layout, width: int, fit: Fit) -> Layout:
    order = [name for name in fit.drop if name in whole.columns]
    idle = [name for name in order if _is_idle(whole, name)]
    made = replace(whole, idle=frozenset(idle))
    for name in idle:
        made = made.without([name])
        if made.width <= width:
            return made
    steps: list[list[str]] = [[], *([name] for name in order if name not in idle)]
    for names in steps:
        made = made.without(names)
        found = _cut(made, width) if fit.cut else made
        if found.width <= width:
            return found
    return replace(whole, stacked=True)


def _is_idle(made: Layout, name: str) -> bool:
    place = made.columns.index(name)
    return all(row[place].text in ("", "0") for row in made.rows)


def _cut(made: Layout, width: int) -> Layout:
    """The table with texts that are as long as the width permits, but not below `CUT_TO`."""
    least = [
        own if is_number else min(own, max(CUT_TO, cell_len(name)))
        for own, is_number, name in zip(made.widths, made.numeric, made.columns, strict=True)
    ]
    spare = width - replace(made, widths=least).width
    for place in sorted(range(len(least)), key=lambda place: made.widths[place]):
        added = max(min(made.widths[place] - least[place], spare), 0)
        least[place] += added
        spare -= added
    return replace(made, widths=least)


def _stack(made: Layout, width: int | None) -> Iterator[str]:
    names = max(map(cell_len, made.columns), default=0)
    values = max((cell_len(cell.text) for row in made.rows for cell in row), default=0)
    if width is not None:
        names = min(names, max(width - len(BESIDE) - LEAST_TEXT, 1))
        values = min(values, max(width - names - len(BESIDE), LEAST_TEXT))
    for number, row in enumerate(made.rows, 1):
        heading = f"-[ record {number:,} ]"
        yield heading + "-" * (names + len(BESIDE) + values - len(heading))
        for name, cell in zip(made.columns, row, strict=True):
            begin = _cell(Styled(shortened(name, names), "heading"), names, False)
            for part in _parts(cell.text, values):
                yield f"{begin}{BESIDE}{styled(part, cell.style)}".rstrip()
                begin = " " * names


def _parts(text: str, room: int) -> Iterator[str]:
    """A text in pieces of at most so many cells."""
    piece, cells = "", 0
    for character in text:
        size = cell_len(character)
        if cells + size > room:
            yield piece
            piece, cells = "", 0
        piece, cells = piece + character, cells + size
    yield piece


def _of(value: Cell) -> Styled:
    text, style = value if isinstance(value, Styled) else (value, None)
    return Styled("" if text is None else escaped_line(text), style)


def _cell(cell: Styled, width: int, to_the_right: bool) -> str:
    text = shortened(cell.text, width)
    space = " " * (width - cell_len(text))
    shown = styled(text, cell.style)
    return space + shown if to_the_right else shown + space


def _is_number(text: str) -> bool:
    return text.replace(",", "").lstrip("-").replace(".", "", 1).isdecimal()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], fit: Fit = WHOLE) -> Layout:
    """Print a table that fits standard output, and name the columns that it leaves out.

    Returns:
        The layout that was printed.
    """
    width = width_of(sys.stdout)
    made = layout(columns, rows, width, fit)
    for line in made.lines(width):
        typer.echo(line)
    for text in _left_out(made, fit):
        tell(f" ({text})", "note")
    return made


def _left_out(made: Layout, fit: Fit) -> Iterator[str]:
    names = [name for name in made.dropped if name not in fit.elsewhere]
    if idle := [name for name in names if name in made.idle]:
        yield f"0 or empty: {', '.join(idle)}"
    if others := [name for name in names if name not in made.idle]:
        yield f"no room for: {', '.join(others)}; --json has all"
