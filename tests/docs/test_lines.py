"""Lines of Markdown end at 100 characters, as those of Python do (ruff's E501).

Tables, code blocks, and lines without a place to break (a link, the name of a test) may be longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 100
FOLDERS = (".github", "bench", "docs", "examples", "millwheel/templates", "store", "tests")
PAGES = [
    *ROOT.glob("*.md"),
    *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md") if "out" not in page.parts),
]


def too_long(text: str) -> Iterator[int]:
    """The numbers of lines that are too long, and could end earlier."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if opened := re.match(r"\s*(```+|~~~+)", line):
            fence = "" if fence == opened[1] else fence or opened[1]
        elif not fence and len(line) > LONGEST and not line.lstrip().startswith("|"):
            breakable = re.sub(r"^\s*(?:[-*+>]|\d+\.|#+)?\s*", "", line).strip()
            breakable = re.sub(r"^\[[^\]]*\]\(\S*\)$", "", breakable)
            if " " in breakable:
                yield number


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lines_of_markdown_end_at_100_characters(page: Path) -> None:
    assert list(too_long(page.read_text("utf-8"))) == []


def test_what_cannot_break_may_be_longer() -> None:
    word = "x" * 101
    allowed = f"| {word} | b |\n  {word}\n* `{word}`\n```\na {word}\n```\n"
    assert list(too_long(allowed)) == []
    assert list(too_long(f"a {word}\n{allowed}* b {word}\n")) == [1, 8]
