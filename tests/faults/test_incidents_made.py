"""Incidents of `docs/howto/incidents` are made on purpose; the commands as printed there name the
cause, and mend it, and print the columns that the pages show."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from millwheel.store import embedded
from tests.faults.incidents import KEYS, MOST_PENDING, POISON, SLOW, append
from tests.faults.service import Service
from tests.support.servers import reachable_directory
from tests.support.shells import Shell

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
SECONDS = 90.0


def header(output: str) -> set[str]:
    """The columns of a table that a command has printed; none if it is no table."""
    above_rule = re.search(r"^(.*\|.*)\n-+\+", output, re.MULTILINE)
    return {name.strip() for name in above_rule[1].split("|")} if above_rule else set()


class Scene(Shell):
    """An operator, and two workers of the pipeline."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, str(directory / "store"), "shop")
        self.environment |= {
            "OPS_INPUT": str(directory),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self.service = Service(directory, "tests.faults.incidents:pipeline", "shop", "OPS_INPUT")

    def asked(self, page: str, command: str, **replaced: str) -> str:
        """The output of a command that a page shows; placeholders in it are replaced.

        It has the columns that the page shows, if it shows any.
        """
        text = re.sub(r" *\\\n *(?:> )?", " ", (HOWTO / f"{page}.md").read_text("utf-8"))
        (line, shown), *_ = (
            found
            for found in re.findall(r"\$ millwheel (.+)\n((?:(?! *[$#`]).*\n)*)", text)
            if found[0].startswith(command)
        )
        for name, value in replaced.items():
            line = line.replace(name.strip("_"), value)
        output = self(*shlex.split(line, comments=True))
        columns = header(shown) - {"..."}
        assert columns <= header(output), f"{page}.md shows other columns than\n{output}"
        return output

    def until(self, look: Callable[[], str], *wanted: str) -> str:
        """Look again and again, until it says all that is wanted."""
        deadline = time.monotonic() + SECONDS
        while True:
            found = look()
            if all(re.search(each, found) for each in wanted):
                return found
            assert time.monotonic() < deadline, f"{wanted} not in:\n{found}\n{self.service.log()}"
            time.sleep(0.5)


@pytest.fixture
def scene() -> Iterator[Scene]:
    directory = reachable_directory("mw-incidents-")
    made = Scene(directory)
    append(directory, range(1))
    embedded.start(directory / "store")
    made.service.start()
    made.service.start()
    yield made
    for file in ("account_13", "fast"):
        (directory / file).touch()
    made.service.stop()
    embedded.remove(directory / "store")
    shutil.rmtree(directory)


def test_each_incident_leads_to_its_cause_and_cure(scene: Scene) -> None:
    directory, service = scene.directory, scene.service
    scene.until(lambda: str(service.read("SELECT count(*) FROM parked_keys")), re.escape("[(1,)]"))
    assert "1 key parked" in scene("status", "shop")
    append(directory, range(1, 400))

    # A key is poison: its payments wait behind the first one, all others go on.
    section = "incidents/poison-key"
    told = scene.until(
        lambda: scene.asked(section, "dead-letters list --group-by"), "no such account: N"
    )
    assert re.search(r"\b1\b", told)
    (letter,) = scene.json("dead-letters", "list", "--key", str(POISON))
    assert "no such account: 13" in scene.asked(section, "dead-letters list --key 13")
    shown = scene.asked(section, "dead-letters show 1", _1=str(letter["id"]))
    assert "LookupError" in shown
    assert "incidents.py" in shown

    # Results are late: the first window is not closed, and a record of the slow key holds it.
    section = "incidents/results-late"
    holders = scene.until(lambda: scene.asked(section, "sql"), rf"key {SLOW}\b")
    assert "score" in holders
    assert "checked" in scene.asked(section, "state get score 7", _7=str(SLOW))

    # One is slow: its key has been at work for the longest time.
    section = "incidents/slow-computation"
    scene.until(lambda: scene.asked(section, "status"), rf"oldest [0-9.]+ s, key {SLOW}\b")
    assert "check" in scene.asked("run/intervals", "intervals list")

    # The source is behind: rows wait for the slow key, and no more are read.
    told = scene.until(
        lambda: scene.asked("incidents/source-behind", "sql"), rf"\| +{MOST_PENDING} +\|"
    )
    assert "pays" in told

    # The disk fills: a session with a long transaction keeps the oldest bucket.
    section = "incidents/schema-grows"
    with psycopg.connect(service.url()) as reader:
        reader.execute("SELECT count(*) FROM shop.commit_record")
        asked = 'sql "SELECT kept_by'
        scene.until(
            lambda: scene.asked(section, asked), "reader", rf"process {reader.info.backend_pid}\b"
        )
        assert "seen ids" in scene.asked(section, 'sql "SELECT kind, sum')
        scene.asked(section, 'sql "SELECT kind, what')
        told = scene.asked(section, "status shop --disk")
        assert f"process {reader.info.backend_pid}" in told
        assert "seen ids" in told
    scene.asked(section, 'sql "SELECT computation, commits')

    # A worker is gone: the other one has its keys.
    victim = service.workers.pop()
    victim.kill()
    victim.wait()
    section = "incidents/worker-gone"
    scene.until(lambda: scene.asked(section, "sql"), "claim.*the lease of its owner is over")
    scene.until(lambda: scene.asked(section, "status"), "worker .*running")
    service.start()

    # The cure of the slow key, and of the poison one: all results are there.
    (directory / "fast").touch()
    scene.until(lambda: str(service.read("SELECT count(*) FROM totals")), r"\(([2-9]),\)")
    (directory / "account_13").touch()
    section = "incidents/poison-key"
    (letter,) = scene.json("dead-letters", "list", "--key", str(POISON))
    told = scene.asked(section, 'dead-letters retry --error "no such account" --dry-run')
    assert "1 dead letter matches" in told
    assert "wait behind them" in told
    assert "done: 1" in scene.asked(section, 'dead-letters retry --error "no such account" --rate')
    scene.until(lambda: str(service.read("SELECT count(*) FROM parked_keys")), re.escape("[(0,)]"))

    # Postgres was away: the workers say so, and go on.
    server = int((directory / "store" / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(server, signal.SIGQUIT)
    append(directory, range(400, 600))
    embedded.start(directory / "store")
    scene.until(lambda: str(service.read("SELECT count(*) FROM totals")), r"\((9),\)")
    scene.until(lambda: (directory / "workers.log").read_text(), "commit_failed")
    assert sum(row[0] for row in service.read("SELECT cents FROM totals")) <= 600 * KEYS
