"""Parked keys by the command line: seen, mended, discarded."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millwheel.store import embedded
from tests.faults.parked import KEYS, POISON, append
from tests.support.shells import Shell

RECORDS = 2 * KEYS + 1
FAILING = len(range(0, RECORDS, POISON))
"""Keys that are parked at first: no two numbers among these have the same."""


@pytest.fixture
def shell() -> Iterator[Shell]:
    """A directory with a running service of `tests.faults.parked`."""
    directory = Path(tempfile.mkdtemp(prefix="mw-parking-", dir="/tmp"))
    directory.chmod(0o755)
    store = directory / "store"
    embedded.start(store)
    made = Shell(directory, str(store), "parked")
    made.environment |= {
        "PARKED_INPUT": str(directory),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    append(directory, range(RECORDS))
    worker = made.start("worker", "tests.faults.parked:pipeline")
    yield made
    worker.end(signal.SIGTERM)
    embedded.remove(store)
    shutil.rmtree(directory)


def check(shell: Shell) -> dict[str, Any]:
    """The status of the computation that parks keys."""
    ((status,),) = (found["pipelines"] for found in [shell.json("status", "parked")])
    return next(one for one in status["computations"] if one["name"] == "check")


def until(shell: Shell, keys: int, **wanted: int) -> None:
    """Wait until so many keys are parked, and other figures are as wanted."""
    deadline = time.monotonic() + 60
    while True:
        code, stdout, stderr = shell.start("status", "parked", "--json").end()
        if code == 0 and '"parked"' in stdout:
            found = check(shell)
            if found["parked"]["keys"] == keys and found | wanted == found:
                return
        assert time.monotonic() < deadline, (stdout, stderr)


def test_an_operator_mends_a_parked_key(shell: Shell) -> None:
    until(shell, FAILING, processed=RECORDS)
    waiting = check(shell)["parked"]["records"]
    assert waiting > 2
    text = shell("status", "parked")
    assert f"check: {FAILING} keys parked" in text
    assert f"{waiting:,} records wait" in text

    # Which ones, and why?
    failed = shell.json("dead-letters", "list")
    assert {letter["parked"] for letter in failed} == {"failed"}
    assert len(failed) == check(shell)["dead_letters_kept"] == FAILING
    assert len(shell.json("dead-letters", "list", "--waiting")) == FAILING + waiting
    told = shell("sql", "SELECT key, waiting, error FROM parked_keys WHERE key = '0'")
    assert "ValueError: 0 is poison" in told

    # One is mended: its records follow. Nothing else is asked for.
    told = shell("dead-letters", "retry", "--key", "0", "--dry-run")
    assert "2 records wait behind them in parked keys, and follow by themselves" in told
    (shell.directory / "mended").write_text(str(POISON - 1))
    assert "done: 1" in shell("dead-letters", "retry", "--key", "0")
    until(shell, FAILING - 1)
    order = (
        "SELECT string_agg(number || ' ' || place, ', ' ORDER BY place) FROM passed WHERE "
        "account = 0"
    )
    assert f"0 1, {KEYS} 2, {2 * KEYS} 3" in shell("sql", order)

    # One is left out: the next ones of its key begin.
    key = str(POISON * 7 % KEYS)
    behind = [
        one
        for one in shell.json("dead-letters", "list", "--key", key, "--waiting")
        if one["parked"] == "waiting"
    ]
    assert "no dead letter" in shell("dead-letters", "discard", str(behind[0]["id"]), code=2)
    told = shell("dead-letters", "discard", "--key", key, "--yes", "--reason", "a test")
    assert "discarded 0 dead letters" in told
    assert "asked the owners of parked keys to discard 1" in told
    assert "done: 1" in told
    until(shell, FAILING - 2)

    # The rest, with all that waits.
    assert "done" in shell("dead-letters", "discard", "--all", "--waiting", "--yes")
    until(shell, 0, dead_letters_kept=0)
    verbs = [entry["verb"] for entry in shell.json("log")]
    assert verbs == ["discard", "discard", "retry"]
