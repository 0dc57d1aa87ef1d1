"""The command line on terminals of several widths, and without one."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millwheel.cli.help_page import folded
from millwheel.cli.main import COMMANDS, app
from tests.support.parsed_commands import commands
from tests.support.shells import MODULE, Shell, lines
from tests.support.store_sites import Schema
from tests.support.terminals import Screen, Shown, Terminal, interrupt_when

WIDTHS = (60, 80, 120)


REDRAWN = "\x1b[J"


@pytest.fixture
def shell(new_schema: Callable[[int], Schema]) -> Iterator[Shell]:
    """Commands on a Postgres with the schema of the pipeline. The name of the directory is short:
    a terminal folds a longer one, as any word that is wider than itself."""
    schema = new_schema(18)
    with tempfile.TemporaryDirectory(prefix="mw-", dir="/tmp") as directory:
        (Path(directory) / "wheel.py").write_text(MODULE)
        made = Shell(Path(directory), schema.url, schema.name)
        yield made
        made.end()


def gated(shell: Shell) -> None:
    """Write an input whose middle waits for the file of the gate."""
    rows = lines(1_000)
    rows[500]["text"] = "gate"
    shell.write(rows)


def bars(shown: str) -> int:
    """How often a line with a share of the input was drawn."""
    return sum("% · " in drawing for drawing in shown.split(REDRAWN))


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
        (["state", "get"], "error: Missing argument 'computation'"),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest_one(words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[0] == message
    assert "--help" in done.stderr.splitlines()[-1]


def test_a_wrong_value_is_answered_with_the_nearest_one() -> None:
    done = CliRunner().invoke(app, ["sql", "SELECT 1", "-f", "jsn"])
    assert done.exit_code == 2
    first = done.stderr.splitlines()[0]
    assert first.endswith("'jsn' is not one of 'table', 'csv', 'json'. Did you mean json?")


# ---------------------------------------------------------------------------------- progress


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_draws_one_line_again_and_again(shell: Shell, width: int) -> None:
    gated(shell)
    seen: list[str] = []

    def open_gate(shown: str, send: Callable[[int], None]) -> bool:
        seen.append(shown)
        if bars(shown) < 4:
            return False
        shell.gate.touch()
        return True

    done = Terminal(width).run(
        shell, "run", "wheel:pipeline", "--log-level", "error", then=open_gate,
        GATE=str(shell.gate),
    )  # fmt: skip
    assert done.code == 0, done.raw
    assert done.screen.folded == []
    assert done.raw.partition("complete")[0].count("\n") == 0, "a tick is no line"
    drawn = [Screen(width).feed(shown).lines for shown in seen]
    assert {len(rows) for rows in drawn if rows} == {1}
    assert any("━" in rows[0] and "/s" in rows[0] for rows in drawn if rows)
    assert done.screen.lines[0].startswith("wheel: complete (this run"), "the bar is gone"


def test_a_run_that_is_interrupted_leaves_a_clean_end(shell: Shell) -> None:
    gated(shell)
    done = Terminal(80).run(
        shell, "run", "wheel:pipeline", GATE=str(shell.gate),
        then=interrupt_when(lambda shown: bars(shown) >= 2),
    )  # fmt: skip
    assert done.code == 130, done.raw
    assert not [line for line in done.screen.lines if "% · " in line]
    assert "wheel: stopped; run again to resume" in done.text
    assert done.screen.lines[-1].lstrip().startswith("low watermark")
    assert done.raw.endswith("\r\n")


def test_a_bar_follows_the_width_of_its_terminal(shell: Shell) -> None:
    gated(shell)
    terminal = Terminal(100)
    resized = 0

    def narrow(shown: str, send: Callable[[int], None]) -> bool:
        nonlocal resized
        if not resized and bars(shown) >= 2:
            resized = len(shown)
            terminal.resize(60)
        if not resized or bars(shown[resized:]) < 4:
            return False
        shell.gate.touch()
        return True

    done = terminal.run(
        shell, "run", "wheel:pipeline", "--log-level", "error", then=narrow, GATE=str(shell.gate)
    )
    drawings = [text.strip("\r") for text in done.raw[resized:].split(REDRAWN)[1:] if "/s" in text]
    assert max(len(Screen(200).feed(text).lines[0]) for text in drawings[1:4]) < 60


def test_a_worker_draws_a_line_too(shell: Shell) -> None:
    shell.write(lines(10))
    done = Terminal(100).run(
        shell, "worker", "wheel:pipeline", "--log-level", "error",
        then=interrupt_when(lambda shown: shown.count("1 worker ·") >= 3),
    )  # fmt: skip
    assert done.code == 130, done.raw
    assert done.screen.folded == []
    assert done.screen.lines in ([], ["^C"])


@pytest.mark.parametrize("processes", [(), ("--workers", "2")])
def test_a_terminal_without_a_cursor_and_a_pipe_get_plain_lines(
    shell: Shell, processes: tuple[str, ...]
) -> None:
    shell.write(lines(300))
    words = ("run", "wheel:pipeline", "--log-format", "text", *processes)
    on_terminal = Terminal(80).run(shell, *words, TERM="dumb")
    shell.write(lines(50, 300), append=True)
    code, stdout, stderr = shell.start(*words, "--accept-late").end()
    assert (on_terminal.code, code) == (0, 0), stderr
    for shown in (on_terminal.raw.replace("\r\n", "\n"), stdout, stderr):
        assert not {"\r", "\x1b"} & {*shown}
    assert "progress" in stderr
    assert "complete (this run" in stdout


# ------------------------------------------------------------------------------------ tables

LOOKS = (
    "status", "status --disk", "intervals list --events 9", "log", "dead-letters list",
    "dead-letters list --group-by error", "query list wheel:pipeline", "state get words ant",
    "plan wheel:pipeline", "sql 'SELECT * FROM workers' 'SELECT * FROM dead_letters'",
    "sql 'SELECT * FROM states LIMIT 3' --expanded on",
)  # fmt: skip


@pytest.fixture
def looked_at(shell: Shell) -> Shell:
    """A pipeline with dead letters, requests and intervals to look at."""
    rows = lines(40)
    rows[7]["text"] = "boom " + "long " * 40
    shell.write(rows)
    shell("run", "wheel:forgiving")
    shell("pause", shell.name, "--reason", "a reason that is rather long, to be cut on a terminal")
    return shell


def test_nothing_to_look_at_is_wider_than_the_terminal(looked_at: Shell) -> None:
    for words, width in [*zip(LOOKS, repeat(60)), ("status", 80), ("status", 120)]:
        done = Terminal(width).run(looked_at, *shlex.split(words))
        assert done.code == 0, done.raw
        assert done.screen.folded == [], f"{words} on {width} columns"
        assert done.screen.lines, words


def test_a_watched_status_follows_the_size_of_its_terminal(looked_at: Shell) -> None:
    terminal, begun = Terminal(100), 0

    def narrow(shown: str, send: Callable[[int], None]) -> bool:
        nonlocal begun
        if not begun and REDRAWN in shown:
            begun = len(shown)
            terminal.resize(60)
        if not begun or REDRAWN not in shown[begun:]:
            return False
        send(signal.SIGINT)
        return True

    done = terminal.run(looked_at, "status", "--watch", "--interval", "60", then=narrow)
    assert done.code == 130
    screen = Screen(60).feed(done.raw[begun:])
    assert screen.folded == []
    assert screen.lines[-1] == "interrupted"
    assert sum(line.startswith("pipeline wheel at") for line in screen.lines) == 1


def test_long_cells_are_cut_on_a_terminal_alone(looked_at: Shell) -> None:
    reason = "a reason that is rather long, to be cut on a terminal"
    on_terminal = Terminal(90).run(looked_at, "log").text
    assert "…" in on_terminal
    assert reason not in on_terminal
    assert reason in looked_at("log")
    assert looked_at.json("log")[0]["reason"] == reason
    for words in (["log"], ["dead-letters", "list"], ["status"]):
        assert "…" not in looked_at(*words)


def test_sql_stacks_rows_that_are_wider_than_the_terminal(looked_at: Shell) -> None:
    words = ("sql", "SELECT * FROM dead_letters")
    assert "-[ record 1 ]-" in Terminal(80).run(looked_at, *words).text
    assert "-[ record 1 ]-" in looked_at(*words, "--expanded", "on")
    table = looked_at(*words)
    assert "record 1" not in table
    assert table.splitlines()[0].split(" | ")[0].strip() == "id"
    assert Terminal(80).run(looked_at, *words, "-x", "off").screen.folded != []
    assert "record" not in Terminal(80).run(looked_at, "sql", "SELECT 1 AS a").text


# ----------------------------------------------------------------------------------- colours

COLOUR = re.compile(r"\x1b\[[\d;]*m")
COLOURED = ("--help", "status", "log", "run wheel:pipeline")


def test_colours_are_for_terminals_that_have_them_and_say_nothing_new(looked_at: Shell) -> None:
    looked_at("resume", looked_at.name)
    for words in COLOURED:
        given = shlex.split(words)
        coloured = Terminal(80).run(looked_at, *given)
        plain = Terminal(80).run(looked_at, *given, NO_COLOR="1")
        dumb = Terminal(80).run(looked_at, *given, TERM="dumb")
        piped = looked_at.start(*given, NO_COLOR="").end()
        assert {coloured.code, plain.code, dumb.code, piped[0]} == {0}
        assert COLOUR.search(coloured.raw), words
        assert not COLOUR.search(plain.raw), words
        assert "\x1b" not in dumb.raw + "".join(piped[1:]), words
        assert digits_off(coloured) == digits_off(plain), words
    assert COLOUR.search(Terminal(80).run(looked_at, "status", NO_COLOR="").raw), "it is empty"


def digits_off(shown: Shown) -> str:
    """A text without its times and ids."""
    return re.sub(r"\w*\d\w*", "0", shown.text)
