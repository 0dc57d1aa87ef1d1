"""The command line on terminals of several widths, and without one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from millwheel.cli.help_page import folded
from millwheel.cli.main import COMMANDS, app
from tests.support.parsed_commands import commands

WIDTHS = (60, 80, 120)


def code(*words: str) -> str:
    """A program that runs a command, and prints which modules it has imported."""
    return (
        "import sys\nfrom millwheel.cli.main import app\n"
        f"try: app({list(words)!r})\n"
        "except SystemExit: print(*sys.modules)"
    )


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_a_help_page_is_not_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, path: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = CliRunner().invoke(app, [*path.split()[1:], "--help"]).output
    assert "Examples:" in shown
    assert [line for line in shown.splitlines() if len(line) > width] == []


def test_the_overview_names_each_command_under_a_heading() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    headings = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    for heading in ("Run", "Look", "Change and deploy", "Mend", "Spark", "Store"):
        assert f"{heading}:" in headings
    for name, (_, summary, heading) in COMMANDS.items():
        section = shown.partition(f"\n{heading}:\n")[2].partition("\n\n")[0]
        assert f"  {name} " in section
        assert summary in " ".join(section.split())


def test_the_overview_imports_no_command_and_no_rich() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", code("--help")], capture_output=True, text=True, check=True
    ).stdout
    modules = set(shown.splitlines()[-1].split())
    assert not {name for name in modules if name.startswith("millwheel.cli.commands.")}
    assert not {"rich.console", "psycopg", "millwheel.pipeline"} & modules


def test_a_folded_example_is_one_command_of_a_shell() -> None:
    command = "echo state set cats --merge '{\"a b\": 0}' --wait 30"
    for width in range(10, 60):
        lines = folded(command, width)
        done = subprocess.run(["sh", "-c", "\n".join(lines)], capture_output=True, text=True)
        assert done.stdout == 'state set cats --merge {"a b": 0} --wait 30\n'
    assert folded(command, 30) == [
        "echo state set cats \\", "    --merge '{\"a b\": 0}' \\", "    --wait 30",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stats"], "error: no such command: stats. Did you mean status?"),
        (["query", "lst"], "error: no such command: lst. Did you mean list?"),
        (["status", "--wach"], "error: no such option: --wach. Did you mean --watch?"),
        (["status", "--stor", "x"], "error: no such option: --stor. Did you mean --store?"),
        (["--stor", "x"], "error: no such option: --stor. Did you mean --store?"),
        (["zzzzzz"], "error: no such command: zzzzzz"),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest_one(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[0] == message
    assert "--help" in done.stderr.splitlines()[-1]
