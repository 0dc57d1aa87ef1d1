"""Parked keys by the command line: seen, mended, discarded."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.parked import KEYS, POISON, append
from tests.support.servers import database
from tests.support.shells import Shell

RECORDS = 2 * KEYS + 1
FAILING = len(range(0, RECORDS, POISON))
"""Keys that are parked at first: no two numbers among these have the same."""


@pytest.fixture
def shell(postgres_url: Callable[[int], str], tmp_path: Path) -> Iterator[Shell]:
    """A directory with a running service of `tests.faults.parked`."""
    with database(postgres_url(18)) as url:
        made = Shell(tmp_path, url, "parked")
        made.environment |= {
            "PARKED_INPUT": str(tmp_path),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        append(tmp_path, range(RECORDS))
        made("migrate", "parked")
        worker = made.start("worker", "tests.faults.parked:pipeline")
        yield made
        worker.end(signal.SIGTERM)


def check(shell: Shell) -> dict[str, Any]:
    """The status of the computation that parks keys; nothing before it is deployed."""
    (status,) = shell.json("status", "parked")["pipelines"]
    return next((one for one in status["computations"] if one["name"] == "check"), {})


def until(shell: Shell, keys: int, **wanted: int) -> dict[str, Any]:
    """Wait until so many keys are parked, and other figures are as wanted; the status then."""
    deadline = time.monotonic() + 60
    while True:
        found = check(shell)
        if found and found["parked"]["keys"] == keys and found | wanted == found:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_an_operator_mends_a_parked_key(shell: Shell) -> None:
    found = until(shell, FAILING, processed=RECORDS)
    waiting = found["parked"]["records"]
    assert waiting > 2
    text = shell("status", "parked")
    assert f"check: {FAILING} keys parked" in text
    assert f"{waiting:,} records wait" in text

    # Which ones, and why?
    failed = shell.json("dead-letters", "list")
    assert {letter["parked"] for letter in failed} == {"failed"}
    assert len(failed) == found["dead_letters_kept"] == FAILING
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
    assert "asked the owners of keys to discard 1" in told
    assert "done: 1" in told
    until(shell, FAILING - 2)

    # The rest, with all that waits.
    assert "done" in shell("dead-letters", "discard", "--all", "--waiting", "--yes")
    until(shell, 0, dead_letters_kept=0)
    verbs = [entry["verb"] for entry in shell.json("log")]
    assert verbs == ["discard", "discard", "retry"]
