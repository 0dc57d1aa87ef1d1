"""Commands are declared once: their options, their groups, and the overview of the program."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from typer.testing import CliRunner

from millwheel.cli.command import COMMON
from millwheel.cli.main import COMMANDS, app
from millwheel.cli.main import EXAMPLES as OVERVIEW
from tests.support.parsed_commands import CLI, check, commands

MOST_OPTIONS = 257
"""Four of them for changes of a pipeline: `worker --only-keys`, `migrate --states`, `--rate` and
`--allow-drop`. One for a picture: `graph --svg`, one for projects: `new --template`. Four for
`dev`: `--yes`, `--http`, `--ingest` and `--ingest-tokens` of other commands. Seven for submitted
queries: `--name`, `--json`, and twice or three times the `--yes` and `--reason` of other commands.
One for terminals, `sql --expanded`, and `--json` of each command that changes something: scripts
need the outcome, too (tests/cli/test_json.py). Two for completion in shells, as each program with
typer has them. Five for `doctor`: `--json`, and the options of the workers that are to run. Ten for
pages: `run --ui`, and of `ui` the address, the ways in (decision 85), and `--redact`. Twenty
for copies: `savepoint --keep`, `--to`, `fork --as`, `--from`, `--to-store`, `--deliver`, `--tee`,
`restore --confirm`, and those of other commands. Seventeen are `--as` of the commands that take
code: the name of a fork is no option of the others. Three are `--yes`, `--reason` and `--json` of
`outputs`. Five are of `diff`: `--json`, the tables, how far they are compared (`--at`, `--time`),
and `--limit`, since a long snapshot delays the store's upkeep."""


def options(command: Any) -> list[str]:
    return [p.name for p in command.params if p.param_type_name == "option"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_begins_as_the_help_of_a_command(name: str) -> None:
    first, _, _ = CLI.commands[name].help.replace("\n", " ").partition(". ")
    assert f"{first.rstrip('.')}." == COMMANDS[name][1]


EXAMPLES = [(path, line) for path, one in commands() if not hasattr(one, "commands")
            for line in (one.epilog or "").splitlines()]  # fmt: skip


def test_each_command_has_one_to_three_examples() -> None:
    number = Counter(path for path, _ in EXAMPLES)
    leaves = [path for path, one in commands() if not hasattr(one, "commands")]
    assert {path: number[path] for path in leaves if not 1 <= number[path] <= 3} == {}


@pytest.mark.parametrize(("path", "line"), [*EXAMPLES, *(("millwheel", e) for e in OVERVIEW)])
def test_an_example_is_a_command_that_there_is(path: str, line: str) -> None:
    assert f"{path} " in f"{line.replace(')', '')} ", "it shows another command"
    check(line)


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
