"""Words are completed in shells, and no command starts slower for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millwheel.cli.main import COMMANDS
from millwheel.cli.shell_completion import rejoined
from millwheel.cli.targets_here import targets

ROOT = Path(__file__).parents[2]

PIPELINES = """
import Pipeline
pipeline: Pipeline = Pipeline("a")
other = Pipeline("b")
def build() -> Pipeline:
    inner = Pipeline("c")
def with_one(x) -> Pipeline: ...
name = "pipeline"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules, and a program `millwheel` in the path."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop.py").write_text(PIPELINES)
    (tmp_path / "shop" / "orders.py").write_text("pipeline = build()\n")
    (tmp_path / "shopping.sql").write_text("SELECT 1")
    (tmp_path / "broken.py").write_bytes(b"pipeline = \xff")
    program = tmp_path / "bin" / "millwheel"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m millwheel "$@"\n')
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def shell(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_bash(line: str, words: str) -> list[str]:
    """What bash gets for the last word of a line, whose words it has cut as `words`."""
    script = f"""
        eval "$(millwheel --show-completion)"
        COMP_LINE='{line}' COMP_WORDS=({words}) COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        _millwheel_completion millwheel
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return shell("bash", "--norc", "-c", script).splitlines()


def test_bash_completes_commands_options_values_and_pipelines(folder: Path) -> None:
    assert in_bash("millwheel st", "millwheel st") == ["status", "state", "stop"]
    assert in_bash("millwheel query d", "millwheel query d") == ["drop"]
    assert in_bash("millwheel status --w", "millwheel status --w") == ["--watch"]
    assert in_bash("millwheel sql --format ", "millwheel sql --format ''") == [
        "table", "csv", "json",
    ]  # fmt: skip
    found = ["shopping.sql", "shop:pipeline", "shop:other", "shop:build"]
    assert in_bash("millwheel run sh", "millwheel run sh") == found
    assert in_bash("millwheel run shop:", "millwheel run shop :") == [
        "pipeline", "other", "build",
    ]  # fmt: skip
    assert in_bash("millwheel run shop:p", "millwheel run shop : p") == ["pipeline"]
    assert in_bash("millwheel graph shop.", "millwheel graph shop.") == ["shop.orders:pipeline"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_with_summaries(folder: Path) -> None:
    script = "millwheel --show-completion | source; complete -C 'millwheel sto'"
    assert shell("fish", "-c", script) == f"stop\t{COMMANDS['stop'][1].rstrip('.')}.\n"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_gets_words_with_summaries(folder: Path) -> None:
    asked = "_TYPER_COMPLETE_ARGS='millwheel run shop:p' _MILLWHEEL_COMPLETE=complete_zsh millwheel"
    assert "shop\\\\:pipeline" in shell("zsh", "-f", "-c", asked)
    assert "#compdef millwheel" in shell("zsh", "-f", "-c", "millwheel --show-completion; true")


def test_the_script_is_installed_for_the_shell_that_asks(folder: Path) -> None:
    shown = shell("bash", "--norc", "-c", "millwheel --install-completion; true")
    assert "bash completion installed" in shown
    script = folder / ".bash_completions" / "millwheel.sh"
    assert "_millwheel_completion" in script.read_text()
    assert str(script) in (folder / ".bashrc").read_text()


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--help"], {}), (["--version"], {}),
        ([], {"COMP_WORDS": "millwheel\nst", "COMP_CWORD": "1"}),
    ],
)  # fmt: skip
def test_help_versions_and_names_of_commands_import_little(
    words: list[str], asked: dict[str, str]
) -> None:
    program = (
        f"import sys; sys.argv[1:] = {words!r}\n"
        "from millwheel.cli.main import main\n"
        "try: main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    if asked:
        asked["_MILLWHEEL_COMPLETE"] = "complete_bash"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | asked
    )
    modules = set(done.stderr.split())
    assert not {name for name in modules if name.startswith("millwheel.cli.commands.")}
    assert "psycopg" not in modules
    if asked:
        assert done.stdout.split() == ["status", "state", "stop"]
    else:
        assert "rich.console" not in modules


def test_words_that_bash_has_cut_at_a_colon_are_put_together() -> None:
    assert rejoined(["m", "run", "a"], 2) == (["m", "run", "a"], 2, "")
    assert rejoined(["m", "run", "a", ":"], 3) == (["m", "run", "a:"], 2, "a:")
    assert rejoined(["m", "run", "a.b", ":", "p", "--x"], 4) == (
        ["m", "run", "a.b:p", "--x"], 2, "a.b:",
    )  # fmt: skip
    assert rejoined(["m", "run", "a", ":", "p", "--x"], 5) == (["m", "run", "a:p", "--x"], 3, "")


def test_pipelines_are_found_in_the_text_of_modules(folder: Path) -> None:
    assert targets("shop:") == ["shop:pipeline", "shop:other", "shop:build"]
    assert targets("shop.o") == ["shop.orders:pipeline"]
    assert targets("nowhere.") == []
    assert "shopping.sql" in targets("")
    assert targets("broken") == []
