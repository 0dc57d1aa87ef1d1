"""Pipelines in several worker processes: ``millwheel run --workers``, and ``millwheel worker``."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import psycopg
import pytest
from psycopg import sql

from millwheel.store.console.migrate import migrate
from tests.support import visits
from tests.support.flights_oracle import airport_hour, flights_of
from tests.support.flights_pages import PAGES, STORM, Files, check, cut

COMMAND = (sys.executable, "-P", "-m", "millwheel.cli.main")
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
UNFINISHED = 2.0 * SECONDS
"""A pause of a tenth of the visits, with which no crew is done while a test watches it."""

MODULE = """
import os
from pathlib import Path

from examples.flights import build, trips
from millwheel import Settings

SETTINGS = Settings(bundle_records=20, chunk_records=20, placement_seconds=0.2, lease_seconds=5.0)


def named(made):
    made.name = os.environ["NAME"]
    made.settings = SETTINGS
    return made


def flights():
    return named(build(Path("flights.jsonl")))


def tails():
    return named(trips.build(Path("flights.jsonl")))
"""


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Two days of thunderstorms, and a module of pipelines over them."""
    directory = tmp_path_factory.mktemp("storm")
    (directory / "slice.py").write_text(MODULE)
    return cut(STORM, directory)


@pytest.fixture
def schema(postgres_url: Callable[[int], str]) -> Iterator[tuple[str, str]]:
    """A pipeline's name, and a store in which its schema is dropped in the end."""
    url, name = postgres_url(18), f"processes_{time.monotonic_ns()}"
    migrate(url, name)
    yield url, name
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


def environment(url: str, name: str, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MILLWHEEL_STORE": url,
        "NAME": name,
        "VISITS_NAME": name,
        **more,
    }


def rows(url: str, name: str, query: str, table: str) -> list[Any]:
    with psycopg.connect(url, options="-c timezone=UTC") as connection:
        text = sql.SQL(query).format(sql.Identifier(name, table))
        return connection.execute(text).fetchall()


@pytest.mark.soak
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("pipeline", ["flights", "tails"])
def test_any_number_of_processes_come_to_the_same(
    pipeline: str, workers: int, storm: Files, schema: tuple[str, str]
) -> None:
    url, name = schema
    done = subprocess.run(
        [*COMMAND, "run", f"slice:{pipeline}", "--workers", str(workers), "--json"],
        cwd=storm.flights.parent,
        env=environment(url, name),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["outcome"] == "complete"
    assert told["processed"] > storm.rows
    if pipeline == "flights":
        found = {
            (origin, hour): tuple(rest)
            for origin, hour, *rest in rows(url, name, "SELECT * FROM {}", "airport_hour")
        }
        assert found == airport_hour(flights_of(STORM))
    else:
        page = PAGES["trips"]
        check(Counter(rows(url, name, page.query, "trips")), page.answer(flights_of(STORM)))
    started = [line for line in done.stderr.splitlines() if '"event": "started"' in line]
    assert len(started) == workers


class Crew:
    """A ``millwheel run --workers`` over `tests.support.visits`."""

    def __init__(self, directory: Path, schema: tuple[str, str], number: int, pause: float) -> None:
        self.url, self.name = schema
        self.answer = visits.write(directory, number, users=400)
        self._log = directory / "log"
        with self._log.open("w") as log:
            self._process = self._start(directory, pause, log)

    def _start(self, directory: Path, pause: float, log: TextIO) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, "run", "tests.support.visits:pipeline", "--workers", "2", "--json"],
            cwd=ROOT,
            env=environment(self.url, self.name, VISITS=str(directory), VISITS_PAUSE=str(pause)),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert self._process.poll() is None, self.log()[-3000:]
            assert time.monotonic() < deadline, self.log()[-3000:]
            self.pause()

    def pause(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.05)

    def steps(self) -> int:
        """Rows so far."""
        try:
            ((found,),) = rows(self.url, self.name, "SELECT count(*) FROM {}", "step")
        except psycopg.errors.UndefinedTable:
            return 0
        return int(found)

    def workers(self) -> dict[int, str]:
        """Process ids of those that live, with their ids."""
        found = rows(
            self.url, self.name, "SELECT pid, id::text FROM {} WHERE NOT stopped", "worker"
        )
        return dict(found)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, dict[str, Any]]:
        out, _ = self._process.communicate(timeout=SECONDS)
        return self._process.returncode, json.loads(out) if out else {}

    def log(self) -> str:
        return self._log.read_text()


def test_a_killed_worker_is_started_again_and_ctrl_c_ends_all_in_order(
    tmp_path: Path, schema: tuple[str, str]
) -> None:
    """And they go on later."""
    crew = Crew(tmp_path, schema, 900, pause=UNFINISHED)
    crew.wait_until(lambda: crew.steps() > 0 and len(crew.workers()) == 2)
    before = crew.workers()
    victim = next(iter(before))
    os.kill(victim, signal.SIGKILL)
    crew.wait_until(lambda: set(crew.workers().values()) - set(before.values()))
    assert '"event": "worker_killed"' in crew.log()
    processes = list(crew.workers())
    crew.signal(signal.SIGINT)
    code, told = crew.end()
    assert (code, told["outcome"], told["signal"]) == (130, "stopped", "SIGINT"), crew.log()[-3000:]
    assert crew.workers().keys() <= {victim}  # it could not say that it stopped
    assert not any(Path(f"/proc/{pid}").exists() for pid in processes)
    again = Crew(tmp_path, schema, 900, pause=0)
    code, told = again.end()
    assert (code, told["outcome"]) == (0, "complete"), again.log()[-3000:]
    assert visits.differences(visits.read(crew.url, crew.name), again.answer) == []


def test_the_workers_end_with_who_started_them(tmp_path: Path, schema: tuple[str, str]) -> None:
    crew = Crew(tmp_path, schema, 900, pause=UNFINISHED)
    crew.wait_until(lambda: crew.steps() > 100 and len(crew.workers()) == 2)
    processes = [os.pidfd_open(pid) for pid in crew.workers()]
    crew.signal(signal.SIGKILL)
    assert crew.end() == (-signal.SIGKILL, {})
    for process in processes:
        assert select.select([process], [], [], SECONDS)[0]
        os.close(process)
    assert crew.workers() == {}
    query = "SELECT min(low_watermark) < 'infinity' FROM {}"
    assert rows(crew.url, crew.name, query, "watermarks") == [(True,)], "there was more to do"
