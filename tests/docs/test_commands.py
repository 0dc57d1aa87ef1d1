"""Commands of the pages and of the examples' docstrings exist, with their options and arguments.

They are parsed as the command line parses them, and not run: most need a store, a broker or a
cluster. `tests/docs/test_readme.py` and `tests/examples/test_docstring_commands.py` run some.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.parsed_commands import WrongWords, check
from tests.support.typed_commands import commands_of

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "bench").glob("*.md"),
        *(ROOT / "millwheel" / "templates").rglob("*.md"),
    ]
)
DECISIONS = ROOT / "docs" / "decisions"
"""They tell what was true when they were made."""
START = ROOT / "docs" / "start"
"""Their commands are run, by `tests/docs/test_pages.py`."""
MODULES = sorted((ROOT / "examples").rglob("*.py"))
PROGRAMS = ("millwheel", "python", "echo", "psql", "sqlite3", "export", "SELECT")
"""First words of the lines of a block in a docstring."""


def in_pages() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if page.is_relative_to(DECISIONS) or page.is_relative_to(START):
            continue
        text = re.sub(r"\\\n\s*", "", page.read_text("utf-8"))
        for line in re.findall(r"^\s*[$#] ((?:millwheel|python -m) .*)$", text, re.MULTILINE):
            yield page.relative_to(ROOT).as_posix(), line


def in_docstrings() -> Iterator[tuple[str, str]]:
    for module in MODULES:
        for line in commands_of(module):
            yield module.relative_to(ROOT).as_posix(), line


@pytest.mark.parametrize(("place", "line"), [*in_pages(), *in_docstrings()])
def test_a_command_is_one_that_there_is(place: str, line: str) -> None:
    if place.endswith(".py"):
        assert line.split()[0] in PROGRAMS, "it is prose, or a command that was wrapped"
    check(line)


def test_there_are_commands_to_check() -> None:
    assert len([*in_pages()]) > 60
    assert len([*in_docstrings()]) > 15


@pytest.mark.parametrize(
    "line",
    [
        "millwheel rum a:b", "millwheel status --wach", "millwheel worker a:b --store x more",
        "millwheel sql 'SELECT 1' --pipeline", "python -m examples.frauds",
        "millwheel graph a:b | millwheel x",
    ],
)  # fmt: skip
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises((WrongWords, AssertionError)):
        check(line)
