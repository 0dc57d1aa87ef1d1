"""Each incident of `docs/incidents.md` is made on purpose; the commands as printed there name the
cause, and mend it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from millwheel.store import embedded
from tests.faults.incidents import KEYS, MOST_PENDING, POISON, SLOW, append
from tests.faults.service import Service
from tests.support.shells import Shell

PAGE = (Path(__file__).parents[2] / "docs/incidents.md").read_text()
SECONDS = 90.0


class Scene(Shell):
    """An operator, and two workers of the pipeline."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, str(directory / "store"), "ops")
        self.environment |= {
            "OPS_INPUT": str(directory),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self.service = Service(directory, "tests.faults.incidents:pipeline", "ops", "OPS_INPUT")

    def asked(self, section: str, command: str, **replaced: str) -> str:
        """What a command says that is printed in a section of the page; placeholders are
        replaced."""
        text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        (line,) = (
            line for line in re.findall(r"\$ millwheel (.+)", text) if line.startswith(command)
        )
        for name, value in replaced.items():
            line = line.replace(name.strip("_"), value)
        return self(*shlex.split(line, comments=True))

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
    directory = Path(tempfile.mkdtemp(prefix="mw-incidents-", dir="/tmp"))
    directory.chmod(0o755)
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
    assert "1 key parked" in scene("status", "ops")
    append(directory, range(1, 400))

    # A key is poison: its payments wait behind the first one, all others go on.
    section = "A key is poison"
    told = scene.until(
        lambda: scene.asked(section, "dead-letters list --group-by"), "no such account: N"
    )
    assert re.search(r"\b1\b", told)
    (letter,) = scene.json("dead-letters", "list", "--key", str(POISON))
    assert "no such account: 13" in scene.asked(section, "dead-letters list --key 13")
    shown = scene.asked(section, "dead-letters show 17", _17=str(letter["id"]))
    assert "LookupError" in shown
    assert "incidents.py" in shown

    # Results are late: the first window is not closed, and a record of the slow key holds it.
    section = "Results are late"
    scene.until(lambda: scene.asked(section, "status"), rf"key {SLOW}\b")
    holders = scene.until(lambda: scene.asked(section, "sql"), rf"key {SLOW}\b")
    assert "score" in holders
    assert '"seen"' in scene.asked(section, "state get check 13", _13=str(SLOW))

    # One is slow: its key has been at work for the longest time.
    section = "A computation is slow"
    scene.until(lambda: scene.asked(section, "status"), rf"oldest [0-9.]+ s, key {SLOW}\b")
    assert "check" in scene.asked(section, "intervals list")

    # The source is behind: rows wait for the slow key, and no more are read.
    told = scene.until(
        lambda: scene.asked("The source is behind", "sql"), rf"\| +{MOST_PENDING} +\|"
    )
    assert "pays" in told

    # The disk fills: a session with a long transaction keeps the oldest bucket.
    section = "The disk fills"
    with psycopg.connect(service.url()) as reader:
        reader.execute("SELECT count(*) FROM ops.commit_record")
        asked = 'sql "SELECT kept_by'
        scene.until(
            lambda: scene.asked(section, asked), "reader", rf"process {reader.info.backend_pid}\b"
        )
        assert "seen ids" in scene.asked(section, 'sql "SELECT kind, sum')
        scene.asked(section, 'sql "SELECT kind, what')
        told = scene.asked(section, "status --disk")
        assert f"process {reader.info.backend_pid}" in told
        assert "seen ids" in told
    scene.asked(section, 'sql "SELECT computation, commits')

    # A worker is gone: the other one has its keys.
    victim = service.workers.pop()
    victim.kill()
    victim.wait()
    section = "A worker is gone"
    scene.until(lambda: scene.asked(section, "sql"), "claim.*the lease of its owner is over")
    scene.until(lambda: scene.asked(section, "status"), "worker .*running")
    service.start()

    # The cure of the slow key, and of the poison one: all results are there.
    (directory / "fast").touch()
    scene.until(lambda: str(service.read("SELECT count(*) FROM totals")), r"\(([2-9]),\)")
    (directory / "account_13").touch()
    section = "A key is poison"
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
    assert "commit_failed" in (directory / "workers.log").read_text()
    assert sum(row[0] for row in service.read("SELECT cents FROM totals")) <= 600 * KEYS
