"""Commands are declared once: their options, their groups, and the overview of the program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from millwheel.cli.command import COMMON
from millwheel.cli.main import COMMANDS, app

CLI: Any = typer.main.get_command(app)
MOST_OPTIONS = 171
"""Four of them for changes of a pipeline: `worker --only-keys`, `migrate --states`, `--rate` and
`--allow-drop`. Seven for submitted queries: `--name`, `--json`, and twice or three times the
`--yes` and `--reason` of other commands. Five for `doctor`: `--json`, and the options of the
workers that are to run, `--workers`, `--listen`, `--http` and `--ingest`."""


def commands(found: Any = CLI, path: str = "millwheel") -> Iterator[tuple[str, Any]]:
    """All commands and groups, by their words."""
    yield path, found
    for name, command in getattr(found, "commands", {}).items():
        yield from commands(command, f"{path} {name}")


def options(command: Any) -> list[str]:
    return [p.name for p in command.params if p.param_type_name == "option"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_begins_as_the_help_of_a_command(name: str) -> None:
    first, _, _ = CLI.commands[name].help.replace("\n", " ").partition(". ")
    assert f"{first.rstrip('.')}." == COMMANDS[name][1]


def test_there_are_not_too_many_options() -> None:
    """An option that can be given once for all commands is a common one."""
    assert sum(len(options(command)) for _, command in commands()) <= MOST_OPTIONS


def test_common_options_are_declared_once() -> None:
    assert {*COMMON} <= {*options(CLI)}
    for path, command in commands():
        if command is not CLI:
            assert not {*COMMON} & {*options(command)}, path


@pytest.mark.parametrize(
    "words",
    [
        ["--debug", "--store", "/nowhere", "intervals", "list"],
        ["intervals", "list", "--debug", "--store", "/nowhere"],
        ["--store", "/elsewhere", "intervals", "list", "--store=/nowhere", "--debug"],
    ],
)
def test_common_options_are_given_before_or_after_the_command(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "there is no store in /nowhere" in done.stderr
    assert "Traceback" in done.stderr


def test_the_help_of_a_command_shows_the_common_options() -> None:
    shown = CliRunner().invoke(app, ["state", "set", "--help"]).output
    assert all(option in shown for option in ("--store", "--debug", "--log-level", "--wait"))
