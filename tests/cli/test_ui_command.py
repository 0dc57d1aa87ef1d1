"""``millwheel ui``, and the pages beside a run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.shells import MODULE, Running, Shell, lines
from tests.support.store_sites import Schema

SECONDS = 60


@pytest.fixture
def shell(new_schema: Callable[[int], Schema], tmp_path: Path) -> Iterator[Shell]:
    schema = new_schema(18)
    (tmp_path / "wheel.py").write_text(MODULE)
    made = Shell(tmp_path, schema.url, schema.name)
    made.write(lines(40))
    yield made
    made.end()


def address(running: Running) -> str:
    found = running.until(lambda line: line["event"] == "ui_listening")
    return str(found["url"])


def test_pages_of_a_store_without_a_worker(shell: Shell) -> None:
    shell("run", "wheel:pipeline")
    running = shell.start("ui", "--http", "127.0.0.1:0")
    url = address(running)
    (found,) = httpx.get(f"{url}/api/").json()["pipelines"]
    assert (found["name"], found["complete"], found["workers"]) == ("wheel", True, 0)
    assert httpx.get(f"{url}/healthz").text.strip() == "ok"
    assert 'millwheel_store_complete{pipeline="wheel"} 1.0' in httpx.get(f"{url}/metrics").text
    assert httpx.get(f"{url}/pipelines/wheel/do/pause").status_code == 403, "nobody may mend"
    code, _, stderr = running.end(signal.SIGTERM)
    assert (code, "Traceback" in stderr) == (128 + signal.SIGTERM, False)


def test_everybody_on_this_machine_may_mend_if_asked_for(shell: Shell) -> None:
    shell("run", "wheel:pipeline", "--keep-open")
    running = shell.start("ui", "wheel", "--http", "127.0.0.1:0", "--mend", MILLWHEEL_ACTOR="ann")
    url = address(running)
    done = httpx.post(f"{url}/pipelines/wheel/do/pause", data={"reason": "a test"})
    assert done.status_code == 303
    (entry,) = shell.json("log")
    assert (entry["actor"], entry["reason"], entry["verb"]) == ("ann", "a test", "pause")


def test_changes_have_a_login_of_their_own(shell: Shell) -> None:
    shell("run", "wheel:pipeline", "--keep-open")
    running = shell.start(
        "ui",
        "--http",
        "127.0.0.1:0",
        "--mend",
        MILLWHEEL_UI_OPERATOR_STORE="postgresql://127.0.0.1:1/x",
    )
    url = address(running)
    assert httpx.get(f"{url}/pipelines/wheel").status_code == 200
    refused = httpx.post(f"{url}/pipelines/wheel/do/pause", data={"reason": "a test"})
    assert refused.status_code == 503
    assert shell.json("log") == []


def test_who_would_let_everybody_in_is_told(shell: Shell) -> None:
    error = shell("ui", "--http", "0.0.0.0:0", code=2)
    assert "anybody who reaches this address" in error
    assert "MILLWHEEL_UI_LOOK_TOKENS" in error
    error = shell("ui", "--mend", "--proxy", "10.0.0.7", code=2)
    assert "one or the other" in error
    assert "10.0.0.7,10.1.0.0/16" in shell("ui", "--proxy", "nowhere", code=2)
    assert "no token in it" in shell("ui", code=2, MILLWHEEL_UI_MEND_TOKENS=" ")
    running = shell.start("ui", "--http", "0.0.0.0:0", MILLWHEEL_UI_LOOK_TOKENS="abc")
    url = address(running).replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(f"{url}/").status_code == 401
    assert httpx.get(f"{url}/", auth=("ann", "abc")).status_code == 200


def test_pages_beside_a_run_end_with_it(shell: Shell) -> None:
    shell.gate.touch()
    running = shell.start(
        "run", "wheel:pipeline", "--keep-open", "--ui", MILLWHEEL_LOG_FORMAT="text"
    )
    assert running.process.stderr is not None
    first = running.process.stderr.readline()
    url = first.split()[0]
    assert "shows wheel while it runs" in first
    until_it_answers(url)
    os.kill(running.process.pid, signal.SIGKILL)
    running.end()
    until_it_is_gone(url)


def until_it_answers(url: str) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            assert httpx.get(url).status_code == 200
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


def until_it_is_gone(url: str) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            httpx.get(url)
        except httpx.TransportError:
            return
        assert time.monotonic() < deadline
        time.sleep(0.1)
