"""Commands take a step by the label under which ``millwheel status`` shows it, too."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.shells import MODULE, Shell, lines
from tests.support.store_sites import Schema

WINDOWS, SINK = "windowed → counts", "sink: counts"


@pytest.fixture
def shell(tmp_path: Path, new_schema: Callable[[int], Schema]) -> Shell:
    """A pipeline that has run, and does not run now."""
    (tmp_path / "wheel.py").write_text(MODULE)
    made = Shell(tmp_path, new_schema(18).url, "wheel")
    made.write([*lines(30), {"at": "2024-01-01T00:01:00Z", "text": "boom"}])
    made("run", "wheel:forgiving", "--keep-open")
    return made


def test_a_label_of_status_names_the_step(shell: Shell) -> None:
    shown = shell("status", "wheel")
    assert WINDOWS in shown
    assert SINK in shown
    of_name = shell("state", "get", "make_counts", "ant")
    assert of_name.startswith("make_counts")
    for label in (WINDOWS, "windowed -> counts"):
        assert shell("state", "get", label, "ant") == of_name
    for command in ("list", "export"):
        letters = shell("dead-letters", command, "--computation", WINDOWS)
        assert letters == shell("dead-letters", command, "--computation", "make_counts")
        assert "boom" not in letters
    assert "0 dead letters" in shell(
        "dead-letters", "discard", "--computation", WINDOWS, "--dry-run"
    )
    assert "removed" in shell("remove", "wheel", SINK, WINDOWS, "--yes")
    (status,) = shell.json("status", "wheel")["pipelines"]
    assert [step["name"] for step in status["computations"]] == ["lines_injector", "words"]


def test_requests_to_owners_take_labels(shell: Shell) -> None:
    running = shell.start("worker", "wheel:forgiving", "--keep-open")
    running.until(lambda line: line["event"] == "started")
    assert shell("state", "delete", WINDOWS, "ant").startswith("done: 1")
    code, said, _ = shell.start("timers", "fire", WINDOWS, "nothing").end()
    assert (code, said.partition(":")[0]) == (1, "refused")
    running.end(signal.SIGTERM)
    assert {entry["computation"] for entry in shell.json("log")} == {"make_counts"}


def test_an_unknown_label_is_answered_with_the_nearest(shell: Shell) -> None:
    for command in (
        ("state", "get", "windowed → cuonts", "ant"),
        ("dead-letters", "list", "--computation", "windowed → cuonts"),
        ("remove", "wheel", "windowed → cuonts", "--yes"),
        ("pause", "wheel", "windowed → cuonts"),
    ):
        said = shell(*command, code=2)
        assert "pipeline 'wheel' has no step 'windowed → cuonts'" in said
        assert f"Did you mean {WINDOWS}?" in said
