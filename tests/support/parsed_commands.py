"""Lines of a shell as the command line parses them, without running them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import typer.main

from millwheel.cli.main import app

CLI: Any = typer.main.get_command(app)
for _option in CLI.params:
    if _option.name == "install_completion":
        _option.callback = None  # it would write to the home of whoever runs the tests
WrongWords = typer.BadParameter.__mro__[1]


def commands(found: Any = CLI, path: str = "millwheel") -> Iterator[tuple[str, Any]]:
    """All commands and groups, by their words."""
    yield path, found
    for name, command in getattr(found, "commands", {}).items():
        yield from commands(command, f"{path} {name}")


def parse(words: list[str]) -> None:
    """Parse the arguments of ``millwheel`` down to the last one, without calling the command.

    Raises:
        WrongWords: there is no such command, option or argument.
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
