"""The example that writes to SQLite: a process that is killed again and again, and each row
once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import psycopg
import pytest
from psycopg import sql

from examples.orders_to_sqlite import ORDERS, Order, build, write
from millwheel.store.console.migrate import migrate
from millwheel.testing import Harness

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0

MODULE = """
import os
from pathlib import Path

from examples.orders_to_sqlite import build

pipeline = build(Path("."), os.environ["NAME"])
"""


@pytest.fixture
def schema(postgres_url: Callable[[int], str]) -> Iterator[tuple[str, str]]:
    """A pipeline's name, and a store in which its schema is dropped in the end."""
    url, name = postgres_url(18), f"orders_{time.monotonic_ns()}"
    migrate(url, name)
    yield url, name
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


def rows(directory: Path, query: str = "SELECT * FROM orders") -> list[tuple[int, str, int]]:
    with closing(sqlite3.connect(directory / "orders.sqlite")) as database:
        try:
            return database.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []  # no table yet


def written(directory: Path) -> int:
    """How many rows there are so far; none before there is a table."""
    found = rows(directory, "SELECT count(*) FROM orders")
    return found[0][0] if found else 0


def row_of(order: Order) -> tuple[int, str, int]:
    return (order.number, order.customer, order.cents)


async def test_a_bundle_is_written_once(tmp_path: Path) -> None:
    orders = write(tmp_path, 20)
    async with Harness(build(tmp_path)) as harness:
        await harness.inject(ORDERS, *orders)
    assert sorted(rows(tmp_path)) == sorted(map(row_of, orders))
    ((last,),) = rows(tmp_path, "SELECT number FROM delivered")  # type: ignore[misc]
    async with Harness(build(tmp_path)) as harness:  # another store: the same numbers once more
        await harness.inject(ORDERS, *orders)
    assert len(rows(tmp_path)) == 20
    assert last >= 1


def start(directory: Path, url: str, name: str) -> subprocess.Popen[bytes]:
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "millwheel.cli.main", "run", "kept:pipeline", "--store",
             url],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{directory}", "NAME": name},
            stdout=log,
            stderr=log,
        )  # fmt: skip


def kill_again_and_again(
    directory: Path, schema: tuple[str, str], kills: int, number: int, seed: int
) -> None:
    """Kill the process each time when some more rows are there, and a moment later."""
    (directory / "kept.py").write_text(MODULE)
    orders = write(directory, number)
    random = Random(seed)
    marks = sorted(random.sample(range(1, number * 3 // 4), kills))
    for mark in marks:
        process = start(directory, *schema)
        deadline = time.monotonic() + SECONDS
        while written(directory) < mark:
            assert process.poll() is None, (directory / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            wait(process, 0.01)
        wait(process, random.uniform(0, 0.02))  # wherever it is by then
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
    assert start(directory, *schema).wait(SECONDS) == 0, (directory / "log").read_text()[-3000:]
    assert sorted(rows(directory)) == sorted(map(row_of, orders))


def wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


@pytest.mark.soak
def test_each_row_is_there_once_after_kills(tmp_path: Path, schema: tuple[str, str]) -> None:
    kill_again_and_again(tmp_path, schema, kills=2, number=4_000, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_each_row_is_there_once_after_many_kills(
    tmp_path: Path, schema: tuple[str, str], seed: int
) -> None:
    kill_again_and_again(tmp_path, schema, kills=15, number=60_000, seed=seed)
