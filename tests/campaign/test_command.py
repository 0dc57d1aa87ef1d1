"""``python -m tests.campaign``: it goes on where it stood, tells what held, and leaves nothing
behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.campaign import command, ledger, plan, results
from tests.campaign.faults import FAULTS
from tests.campaign.plan import Nexmark, Run, one_round
from tests.campaign.report import NEVER_RUN, markdown, summed
from tests.campaign.results import FaultCount, Result
from tests.campaign.wire import Commits
from tests.support.forked_commands import ROOT

# -- the command -----------------------------------------------------------------------------------


def arguments(directory: Path, *more: str) -> list[str]:
    return ["--directory", str(directory), *more]


class Instead:
    """In place of a run: it takes no time."""

    carried_out: list[str] = []  # noqa: RUF012 (of the test)

    def __init__(self, run: Run | Nexmark, keep: Path, say: Callable[[str], None]) -> None:
        self._run = run

    async def carry_out(self) -> Result:
        self.carried_out.append(self._run.name)
        faults = {name: FaultCount(9, 9, [1.5]) for name in getattr(self._run, "faults", {})}
        return Result(
            self._run.name, self._run.seed, records=10**6, faults=faults, differences=[],
            broken_chains=0,
        )  # fmt: skip


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that are over at once; gives their names."""
    monkeypatch.setattr(command, "Ledger", Instead)
    monkeypatch.setattr(command, "NexmarkRun", Instead)
    monkeypatch.setattr(Instead, "carried_out", [])
    monkeypatch.setattr(plan, "NEXMARK_SEEDS", 2)
    monkeypatch.setattr("tests.campaign.report.NEXMARK_SEEDS", 2)
    return Instead.carried_out


def test_it_goes_on_where_it_stood_until_the_targets_are_reached(
    tmp_path: Path, instead: list[str]
) -> None:
    assert command.main(arguments(tmp_path, "--only", "kills,volume")) == 0
    first = list(instead)
    assert first == ["kills-0", "volume-0"]
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"name": "zombies-0", "se')  # it was ended while it wrote
    assert command.main(arguments(tmp_path)) == 0
    assert len(instead) == len(set(instead)), "nothing is done twice"
    assert {"zombies-0", "nexmark-q3-1", "nexmark-q11-2"} <= set(instead)
    done = len(instead)
    assert command.main(arguments(tmp_path)) == 0
    assert len(instead) == done, "all was reached"


def test_what_did_not_hold_is_told_by_the_exit_code(
    tmp_path: Path, instead: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out = Instead.carry_out

    async def broken(self: Instead) -> Result:
        result = await carry_out(self)
        result.anomalies = {"lost write": 1}
        return result

    monkeypatch.setattr(Instead, "carry_out", broken)
    assert command.main(arguments(tmp_path, "--only", "kills")) == command.BROKEN
    assert command.main(arguments(tmp_path, "--report", str(tmp_path / "r.md"))) == command.BROKEN
    monkeypatch.setattr(Instead, "carry_out", carry_out)
    assert command.main(arguments(tmp_path, "--only", "kills", "--again")) == 0
    assert instead == ["kills-0", "kills-0"]
    assert command.main(arguments(tmp_path, "--report", str(tmp_path / "again.md"))) == 0
    report = (tmp_path / "r.md").read_text()
    assert "| lost write | 1 |" in report
    assert "Some runs failed" in report


def test_when_the_time_is_over_it_says_that_more_is_to_do(
    tmp_path: Path, instead: list[str]
) -> None:
    assert command.main(arguments(tmp_path, "--hours", "0")) == command.NOT_REACHED
    assert not instead


def test_the_report_tells_what_was_not_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    results.write(path, Result("machines-0", 0, refused="no network namespace"))
    results.write(
        path,
        Result(
            "kills-0",
            0,
            differences=[],
            broken_chains=0,
            faults={"kill": FaultCount(3, 2, [1.0, 4.0])},
        ),
    )
    text = markdown(summed(results.read(path)))
    assert "| runs of `machines` | this machine refused: no network namespace |" in text
    assert "| kill | 3 | 2 | 2.5 | 4.0 |" in text
    for what in (*NEVER_RUN, *(set(FAULTS) - {"kill"})):
        assert f"| {what} |" in text


def test_runs_have_what_their_faults_need_and_all_faults_are_in_some() -> None:
    for number in range(4):
        runs = one_round(number)
        assert all(not ledger.missing(run) for run in runs)
        assert len({run.name for run in runs}) == len(runs)
    named = {name for run in one_round(0) for name in run.faults}
    assert set(FAULTS) == named
    assert all(fault.what for fault in FAULTS.values())


@pytest.mark.soak
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(Path("/tmp").glob("millwheel-campaign-*"))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.campaign", *arguments(tmp_path, "--only", "volume")],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    logs: list[Path] = []
    while not logs and time.monotonic() < deadline:
        found = set(Path("/tmp").glob("millwheel-campaign-*")) - before
        logs = [log for made in found for log in made.glob("workers.log")]
        time.sleep(0.05)
    assert logs, "no worker has started"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == command.INTERRUPTED, told
    assert not logs[0].parent.exists()


# -- the wire --------------------------------------------------------------------------------------


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


STARTUP = (12).to_bytes(4, "big") + (3 << 16).to_bytes(4, "big") + b"user"
SYNC = message(b"S", b"")
EXECUTE = message(b"E", b"\0\0\0\0\0")


def parse(name: bytes, text: bytes) -> bytes:
    return message(b"P", name + b"\0" + text + b"\0\0\0")


def bind(name: bytes) -> bytes:
    return message(b"B", b"\0" + name + b"\0\0\0\0\0\0\0")


ENGINES = b"WITH part_0 AS (INSERT ...) SELECT 1"


@pytest.mark.parametrize(
    ("sent", "commits"),
    [
        ([parse(b"a", ENGINES) + SYNC, bind(b"a") + EXECUTE, SYNC], [False, False, True]),
        ([bind(b"unknown") + EXECUTE + SYNC], [False]),
        ([message(b"Q", b"COMMIT\0")], [False]),
        (
            [
                parse(b"", b"BEGIN") + bind(b"") + EXECUTE,
                parse(b"a", ENGINES) + bind(b"a") + EXECUTE + SYNC,
                message(b"Q", b"COMMIT\0"),
                bind(b"a") + EXECUTE + SYNC,
            ],
            [False, False, True, True],
        ),
        (
            [message(b"Q", b"BEGIN\0"), message(b"Q", b"ROLLBACK\0"), message(b"Q", b"COMMIT\0")],
            [False, False, False],
        ),
    ],
)
def test_a_commit_is_known_on_the_wire(sent: list[bytes], commits: list[bool]) -> None:
    told = Commits()
    assert not told.feed(STARTUP)
    assert [told.feed(data) for data in sent] == commits
    piecewise = Commits()
    stream = STARTUP + b"".join(sent)
    found = sum(piecewise.feed(stream[at : at + 3]) for at in range(0, len(stream), 3))
    assert found == sum(commits)
