"""Real workers that stand: user code blocks the event loop (decision 63), or other sessions lock
tables."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from millwheel.store import embedded
from tests.faults.blocking import KEYS, TIMERS, Task, append
from tests.faults.service import Service
from tests.support.servers import reachable_directory

TAKEOVERS = "SELECT count(*) FROM placement_events WHERE reason LIKE '%lease%'"


@pytest.fixture
def start() -> Iterator[Callable[[str], Service]]:
    """Starts two workers of a pipeline, and waits until both work."""
    directory = reachable_directory("mw-blocking-")
    made: list[Service] = []

    def started(pipeline: str) -> Service:
        append(directory, [Task(f"key{number}", number) for number in range(KEYS)])
        embedded.start(directory / "store")
        target = f"tests.faults.blocking:{pipeline}"
        service = Service(directory, target, pipeline, "BLOCKING_INPUT")
        made.append(service)
        service.start("--http", "127.0.0.1:0")
        service.start()
        service.wait("SELECT count(*) FROM results", lambda found: found == KEYS)
        spread = "SELECT count(DISTINCT owner) FROM key_interval"
        service.wait(spread, lambda found: found == 2)
        return service

    yield started
    (directory / "woken").touch()
    for service in made:
        service.stop()
    embedded.remove(directory / "store")
    shutil.rmtree(directory)


def lines(service: Service, event: str, **fields: str) -> list[dict[str, Any]]:
    log = (service.directory / "workers.log").read_text()
    found = [json.loads(line) for line in log.splitlines() if line.endswith("}")]
    wanted = {"event": event, **fields}
    return [line for line in found if wanted.items() <= line.items()]


def logged(service: Service, event: str, seconds: float, **fields: str) -> dict[str, Any]:
    """The first line of an event, which must come in time."""
    deadline = time.monotonic() + seconds
    while not (found := lines(service, event, **fields)):
        assert time.monotonic() < deadline, service.log()
        time.sleep(0.1)
    return found[0]


@pytest.mark.soak
def test_what_blocks_for_longer_than_the_lease_costs_no_interval(
    start: Callable[[str], Service],
) -> None:
    service = start("blocking")
    append(service.directory, [Task("sleeper", 100, "nap")])
    named = logged(service, "loop_blocked", 10)
    assert (named["computation"], named["key"]) == ("work", "'sleeper'")
    assert named["record"].startswith(f"record {KEYS} of log")
    assert "process_record: time.sleep(NAP_SECONDS)" in named["lines"][-1]
    service.wait("SELECT count(*) FROM workers WHERE load ? 'blocked'", lambda found: found == 1)
    service.wait("SELECT count(*) FROM results", lambda found: found == KEYS + 1)
    append(service.directory, [Task(f"key{number}", 200 + number) for number in range(KEYS)])
    service.wait("SELECT sum(records) FROM results", lambda found: found == 2 * KEYS + 1)
    assert service.read(TAKEOVERS) == [(0,)]
    assert not lines(service, "lease_over")
    assert service.read("SELECT count(*) FROM dead_letters") == [(0,)]


@pytest.mark.soak
def test_a_record_that_sets_very_many_timers_costs_no_interval(
    start: Callable[[str], Service],
) -> None:
    service = start("patient")
    append(service.directory, [Task("crowd", 300, "crowd")])
    service.wait("SELECT count(*) FROM results", lambda found: found == KEYS + 1)
    assert service.read("SELECT count(*) FROM timers") == [(TIMERS,)]
    append(service.directory, [Task("late", 4_000_000)])
    service.wait("SELECT count(*) FROM results", lambda found: found == KEYS + 2)
    assert service.read(TAKEOVERS) == [(0,)]
    assert not lines(service, "lease_over")


def test_a_record_that_blocks_beyond_the_limit_becomes_a_letter_elsewhere(
    start: Callable[[str], Service],
) -> None:
    service = start("limited")
    append(service.directory, [Task("forever", 100, "stuck"), Task("key3", 101)])
    service.wait("SELECT count(*) FROM dead_letters", lambda found: found == 1)
    ((error,),) = service.read("SELECT error FROM dead_letters")
    assert "blocked the event loop of a worker" in error
    assert "time.sleep(0.05)" in error
    reached = logged(service, "block_limit_reached", 1)
    assert (reached["computation"], reached["key"]) == ("work", "'forever'")
    service.wait("SELECT sum(records) FROM results", lambda found: found == KEYS + 1)
    assert service.read("SELECT count(*) FROM blocking_item") == [(0,)]
    # The worker that was blocked comes back, without its intervals, and works on.
    (service.directory / "woken").touch()
    logged(service, "loop_turns", 20)
    append(service.directory, [Task(f"key{number}", 200 + number) for number in range(KEYS)])
    service.wait("SELECT sum(records) FROM results", lambda found: found == 2 * KEYS + 1)
    assert service.read("SELECT count(*) FROM dead_letters") == [(1,)]


def look(service: Service, path: str) -> str:
    """A page of the first worker."""
    url = logged(service, "http_listening", 1)["url"]
    try:
        with urllib.request.urlopen(f"{url}{path}", timeout=10) as answer:
            return str(answer.read().decode().strip())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())


def command(service: Service, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "millwheel", *words, "--store", "store"],
        cwd=service.directory, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.stdout + done.stderr


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_lock_of_another_session_is_named_everywhere_and_nothing_else_is_blamed(
    start: Callable[[str], Service],
) -> None:
    """First one that stops commits, then one that stops heartbeats."""
    service = start("patient")
    until(lambda: look(service, "/readyz") == "ready")
    with psycopg.connect(service.url(), application_name="an ALTER") as session:
        session.execute("LOCK TABLE patient.results IN ACCESS EXCLUSIVE MODE")
        who = f"process {session.info.backend_pid} (user millwheel, application 'an ALTER'"
        for number in range(4):  # keys of both workers
            append(service.directory, [Task(f"key{n}", 100 * number + n) for n in range(KEYS)])
        waits = logged(service, "store_waits", 30, what="commit")
        assert waits["sessions"][0].startswith(who)
        until(lambda: who in look(service, "/readyz"))
        (seconds,) = re.findall(
            r"^millwheel_oldest_commit_seconds\{.*\} (.*)$",
            look(service, "/metrics"),
            re.MULTILINE,
        )
        assert float(seconds) >= 5
        until(lambda: who in command(service, "status"), 60)
    service.wait("SELECT sum(records) FROM results", lambda found: found == 5 * KEYS)
    until(lambda: look(service, "/readyz") == "ready")
    until(lambda: who not in command(service, "status"))

    with psycopg.connect(service.url()) as session:
        session.execute("LOCK TABLE patient.worker IN ACCESS EXCLUSIVE MODE")
        who = f"process {session.info.backend_pid} (user millwheel"
        began = time.monotonic()
        told = command(service, "status")
        assert time.monotonic() - began < 30
        assert "locked for 3 s by other sessions" in told
        assert who in told
        waits = logged(service, "store_waits", 30, what="heartbeat")
        assert waits["sessions"][0].startswith(who)
        logged(service, "lease_over", 30)
    append(service.directory, [Task(f"key{number}", 900 + number) for number in range(KEYS)])
    service.wait("SELECT sum(records) FROM results", lambda found: found == 6 * KEYS)
    assert not lines(service, "clock_is_off")
    assert not lines(service, "no_worker_of_generation")
