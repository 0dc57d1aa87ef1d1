"""Commands of the pages and of the examples' docstrings exist, with their options and arguments.

They are parsed as the command line parses them, and not run: most need a store, a broker or a
cluster. `tests/docs/test_readme.py` and `tests/examples/test_docstring_commands.py` run some.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main

from millwheel.cli.main import app
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
MODULES = sorted((ROOT / "examples").rglob("*.py"))
PROGRAMS = ("millwheel", "python", "echo", "psql", "sqlite3", "export", "SELECT")
"""First words of the lines of a block in a docstring."""

CLI: Any = typer.main.get_command(app)
UsageError = typer.BadParameter.__mro__[1]


def parse(words: list[str]) -> None:
    """Parse the arguments of ``millwheel`` down to the last one, without calling the command.

    Raises:
        UsageError: there is no such command, option or argument.
    """
    command, context = CLI, CLI.make_context("millwheel", list(words))
    while hasattr(command, "resolve_command"):
        _, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(command.name, rest, parent=context)


def check(line: str) -> None:
    """Check one line of a shell, with its comments, pipes and variables."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "#", True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set(";&|()<>"):
            words.append(word)
            continue
        if words[:1] == ["millwheel"]:
            parse(words[1:])
        elif words[:2] == ["python", "-m"]:
            assert find_spec(words[2]) is not None, f"there is no module {words[2]}"
        words = []


def in_pages() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if page.is_relative_to(DECISIONS):
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
    with pytest.raises((UsageError, AssertionError)):
        check(line)
