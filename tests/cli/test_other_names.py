"""``--as``: code that runs as another pipeline, a fork for example; and ``outputs`` of a fork."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.shells import MODULE, Shell, expected, lines, on_a_terminal
from tests.support.store_sites import Schema

pytestmark = pytest.mark.newest


@pytest.fixture
def shell(new_schema: Callable[[int], Schema]) -> Iterator[Shell]:
    schema = new_schema(18)
    with tempfile.TemporaryDirectory(prefix="mw-", dir="/tmp") as directory:
        (Path(directory) / "wheel.py").write_text(MODULE)
        (Path(directory) / "loud.sql").write_text("INSERT INTO loud SELECT text FROM lines;")
        made = Shell(Path(directory), schema.url, schema.name)
        made.environment["OUTPUT"] = str(Path(directory) / "out")
        yield made
        made.end()


def pipelines(shell: Shell) -> list[str]:
    return [one["name"] for one in shell.json("status")["pipelines"]]


def test_each_command_that_takes_code_takes_it_under_another_name(shell: Shell) -> None:
    rows = lines(60)
    shell.write(rows)
    assert shell.json("migrate", "wheel:pipeline", "--as", "wheel2")["pipeline"] == "wheel2"
    assert shell.json("plan", "wheel:pipeline", "--as", "wheel2")["deployed"] is None
    shell("run", "wheel:pipeline", "--as", "wheel2", "--workers", "2")
    assert shell.json("plan", "wheel:pipeline", "--as", "wheel2")["deployed"] == 1
    graph = shell.json("graph", "wheel:pipeline", "--as", "wheel2")
    assert graph["pipeline"] == "wheel2"
    findings = shell.json("doctor", "wheel:pipeline", "--as", "wheel2")["findings"]
    assert any(one["found"].startswith("wheel2: a graph") for one in findings)
    made = shell.json("query", "submit", "wheel:pipeline", "loud.sql", "--as", "wheel2")
    assert made["pipeline"] == "wheel2"
    found = shell.json("query", "list", "wheel:pipeline", "--as", "wheel2")
    assert [one["name"] for one in found["queries"]] == ["loud"]
    assert shell.json("status", "wheel")["pipelines"][0]["deployed"] is False
    shell.environment["NAME"] = "wheel2"
    assert shell.counts() == expected(rows)


def test_the_environment_may_have_the_name(shell: Shell) -> None:
    shell.write(lines(20))
    shell("migrate", "wheel:pipeline", MILLWHEEL_AS="wheel2")
    shell("migrate", "wheel:pipeline", "--as", "wheel3", MILLWHEEL_AS="wheel2")
    shell("migrate", "wheel4", MILLWHEEL_AS="wheel2")  # a name is no code
    assert pipelines(shell) == ["wheel", "wheel2", "wheel3", "wheel4"]
    worker = shell.start("worker", "wheel:pipeline", MILLWHEEL_AS="wheel2")
    assert worker.until(lambda line: line["event"] == "started")["pipeline"] == "wheel2"
    assert worker.end(signal.SIGTERM)[0] == 143


def test_wrong_names_are_refused(shell: Shell) -> None:
    assert "cannot name a pipeline" in shell("run", "wheel:pipeline", "--as", "wheel@x", code=2)
    for command in ("migrate", "doctor"):
        error = shell(command, "wheel", "--as", "wheel2", code=2)
        assert "'wheel' is a name: give MODULE:PIPELINE with --as" in error


def test_outputs_of_a_fork(shell: Shell) -> None:
    shell.write(lines(20))
    shell("run", "wheel:to_files", "--keep-open")
    shell("fork", "wheel", "--as", "wheel2")
    shell("run", "wheel:to_files", "--as", "wheel2", "--keep-open")
    assert "withholds what leaves the store (a copy of wheel)" in shell("status", "wheel2")
    error = shell("outputs", "wheel2", "on", code=2)
    assert "wheel, of which wheel2 is a copy, has its outputs on (0 workers running it)" in error
    assert "--yes" in error
    code, shown = on_a_terminal(shell, "outputs", "wheel2", "on", answer="n\n")
    assert code == 1
    assert "all the same?" in shown
    found = shell.json("outputs", "wheel2", "on", "--yes", "--reason", "it takes over")
    assert found == {
        "pipeline": "wheel2",
        "outputs": "on",
        "changed": True,
        "steps": ["words"],
        "workers": 0,
    }
    assert "on already" in shell("outputs", "wheel2", "on", "--yes")
    (noted, *_) = shell.json("log", "--pipeline", "wheel2")
    assert (noted["verb"], noted["reason"]) == ("outputs on", "it takes over")
    assert noted["payload"] == {"steps": ["words"]}
    error = shell("outputs", "wheel2", "off", code=2)
    assert "results of wheel2 for words are dropped from then on" in error
    shell("outputs", "wheel2", "off", "--yes")
    shell("outputs", "wheel", "off", "--yes")
    assert "turned on the outputs of wheel2: words" in shell("outputs", "wheel2", "on")
    assert "was never run" in _never_run(shell)


def _never_run(shell: Shell) -> str:
    shell("migrate", "wheel5")
    return shell("outputs", "wheel5", "on", code=2)


def test_a_worker_that_runs_follows_the_switch(shell: Shell) -> None:
    shell.write(lines(20))
    shell("run", "wheel:to_files", "--keep-open")
    shell("fork", "wheel", "--as", "wheel2")
    worker = shell.start("worker", "wheel:to_files", "--as", "wheel2", LEASE="1")
    worker.until(lambda line: line["event"] == "outputs_withheld")
    worker.until(lambda line: line["event"] == "started")
    assert not (shell.directory / "out" / "_as_wheel2").exists()
    shell("outputs", "wheel2", "on", "--yes")
    worker.until(lambda line: line["event"] == "outputs_switched")
    worker.until(lambda line: line["event"] == "started")
    while not [*shell.directory.glob("out/_as_wheel2/part-*")]:  # opened as it claims
        assert worker.process.poll() is None
        time.sleep(0.05)
    assert worker.end(signal.SIGTERM)[0] == 143
