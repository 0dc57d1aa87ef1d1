"""The commands in the examples' docstrings run as they stand, in order, in an empty directory."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.typed_commands import ROOT, commands_of, run, running

EXAMPLES = ROOT / "examples"
SECONDS = 120.0

ENDS = {
    "alerts_on_silence.py": "boiler | 2024-01-01 00:01:40+00 | f",
    "late_data.py": "a      | 2024-01-01 02:00:00+00 |   20",
    "limits.py": "(313 rows)",
    "orders_to_sqlite.py": "5000|5000",
    "orders_unpaid.py": "2 |     500 | 2024-01-01 00:11:00+00",
    "spark_report.py": "|the |2    |3     |1   |",
    "word_count.py": " the  |     2",
}
"""Examples with an end, and a part of the last command's output."""

ENDLESS = {"fraud.py"}
"""Examples of live services: all commands but the last one run until they are interrupted."""

ELSEWHERE = {
    "calls_with_idempotency.py": "test_examples_to_copy.py runs it with a service",
    "followed_logs.py": "test_examples_to_copy.py runs it, with logs that are rotated",
    "kafka_to_kafka.py": "a broker; the commands have placeholders",
    "own_tables.py": "test_examples_to_copy.py runs it on a Postgres",
    "with_fastapi.py": "test_examples_to_copy.py runs it on a Postgres",
    "kafka_broker.py": "tests/kafka/conftest.py starts the broker; the commands have placeholders",
    "kill9.py": "tests/examples/test_kill9.py runs it with fewer payments",
    "shop.py": "tests/kafka/test_shop.py runs it with a broker",
    "flights/trips.py": "a statement for the tables, which tests/spark/test_views.py runs",
}


def test_every_example_with_commands_is_known() -> None:
    found = {
        path.relative_to(EXAMPLES).as_posix()
        for path in EXAMPLES.rglob("*.py")
        if commands_of(path)
    }
    assert found == ENDS.keys() | ENDLESS | ELSEWHERE.keys()


@pytest.mark.parametrize(
    "example",
    [
        "alerts_on_silence.py",
        "late_data.py",
        pytest.param("limits.py", marks=pytest.mark.soak),  # test_limits.py runs its program
        "orders_to_sqlite.py",
        "orders_unpaid.py",
        pytest.param("spark_report.py", marks=[pytest.mark.spark, pytest.mark.soak]),
        "word_count.py",
    ],
)
def test_the_commands_of_an_example_run(example: str, reachable_path: Path) -> None:
    directory = reachable_path / "empty"
    directory.mkdir()
    printed = ""
    for command in commands_of(EXAMPLES / example):
        if command.startswith("sqlite3 ") and shutil.which("sqlite3") is None:
            pytest.skip("there is no sqlite3")
        printed = run(command, directory)
    assert ENDS[example] in printed


@pytest.mark.parametrize("example", sorted(ENDLESS))
def test_the_commands_of_a_live_service_run(example: str, reachable_path: Path) -> None:
    directory = reachable_path / "empty"
    directory.mkdir()
    *services, last = commands_of(EXAMPLES / example)
    with ExitStack() as stack:
        for number, command in enumerate(services):
            log = stack.enter_context(running(command, directory, f"service{number}"))
        _until_written(log, "started")
        assert "missing_cents" in run(last, directory)


def _until_written(log: Path, text: str) -> None:
    deadline = time.monotonic() + SECONDS
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
