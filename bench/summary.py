"""``python -m bench.summary``: draw the table of ``docs/why/benchmarks.md`` as
``docs/why/benchmarks.svg``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "why" / "benchmarks.md"
CHART = PAGE.with_suffix(".svg")

COLORS = {"rate": "#1f5fa8", "time": "#c8501e"}
MEANINGS = {"rate": "rate: more is better", "time": "time: less is better"}
WIDTH, ROW, TOP, LEFT = 900, 40, 56, 480
SPAN = (0.3, 40.0)
"""The ratios at both ends of the scale, which is logarithmic."""


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    measured: str
    beside: str
    ratio: str
    """As the page has it: ``3.1 to 3.8`` is a range."""
    of: str
    """``rate`` or ``time``."""
    command: str

    @property
    def middle(self) -> float:
        """The ratio, or the geometric middle of a range."""
        return math.exp(sum(map(math.log, self.ends)) / len(self.ends))

    @property
    def ends(self) -> list[float]:
        """One number, or the two of a range."""
        return [float(number) for number in self.ratio.split(" to ")]


def rows(page: str) -> list[Row]:
    """The rows of the first table of the page."""
    first = re.sub(r"(?s)^## .*", "", page, count=1, flags=re.MULTILINE)
    lines = re.findall(r"^\| (.*) \|$", first, re.MULTILINE)
    cells = [re.sub(r"`", "", line).split(" | ") for line in lines[1:]]
    return [Row(*found) for found in cells]


def x(ratio: float) -> float:
    """Where a ratio is on the scale."""
    low, high = map(math.log, SPAN)
    return LEFT + (math.log(ratio) - low) / (high - low) * (WIDTH - LEFT - 70)


def chart(found: list[Row]) -> str:
    """The table as SVG: a bar per row, to the right of 1 or to the left of it."""
    height = TOP + ROW * len(found) + 10
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="13">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(10, 20, "millwheel, as a ratio to what ran beside it (logarithmic scale)", size=15),
        *(_text(10 + 200 * n, 42, MEANINGS[of], COLORS[of]) for n, of in enumerate(COLORS)),
        _text(x(1), 42, "1 = the same", anchor="middle"),
    ]
    for number, row in enumerate(found):
        lines += _bar(row, TOP + ROW * number)
    middle = f"{x(1):.1f}"
    lines.append(
        f'<line x1="{middle}" y1="{TOP - 8}" x2="{middle}" y2="{height - 10}" stroke="#666666"/>'
    )
    return "\n".join([*lines, "</svg>", ""])


def _bar(row: Row, y: int) -> list[str]:
    left, right = sorted((x(1), x(row.middle)))
    outside = right + 6 if row.middle >= 1 else left - 6
    return [
        _text(LEFT - 10, y + 14, row.measured, anchor="end"),
        _text(LEFT - 10, y + 29, f"beside {row.beside}", "#666666", anchor="end", size=11),
        (
            f'<rect x="{left:.1f}" y="{y + 5}" width="{max(right - left, 2):.1f}" height="22" '
            f'fill="{COLORS[row.of]}"/>'
        ),
        _text(outside, y + 21, row.ratio, anchor="start" if row.middle >= 1 else "end"),
    ]


def _text(
    x: float, y: float, text: str, color: str = "#222222", *, anchor: str = "start", size: int = 13
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" fill="{color}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )


if __name__ == "__main__":
    CHART.write_text(chart(rows(PAGE.read_text("utf-8"))), "utf-8")
    print(CHART)
