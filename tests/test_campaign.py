"""The fault campaign: what it sees is there, what is there it sees, and it goes on where it stood."""

from __future__ import annotations

import asyncio
import copy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millwheel.runtime.engine import Engine
from millwheel.store.migrate import migrate
from millwheel.store.postgres import PostgresStore
from tests.campaign import command, ledger, plan, reader, results
from tests.campaign.checks import ANOMALIES, Snapshot, Watcher, final, sums
from tests.campaign.faults import FAULTS
from tests.campaign.plan import Nexmark, Run, one_round
from tests.campaign.planted import PLANTED
from tests.campaign.report import NEVER_RUN, markdown, summed
from tests.campaign.results import FaultCount, Result
from tests.campaign.wire import Commits
from tests.campaign.workload import (
    BRANCHES,
    KEYS,
    NAME,
    PARTITIONS,
    STRIDE,
    TENTH,
    TWENTY_FIFTH,
    Reader,
    Work,
    build,
    deposits_of,
    set_rows,
)
from tests.fleet import ROOT

ROWS = 17_777
"""Of each partition: every account has receipts, and some have a deposit more than others."""

WORK = Work("nowhere")


def snapshot(rows: int) -> Snapshot:
    """What must be seen when so many rows of each partition are done, made row by row."""
    found = Snapshot(acknowledged=dict.fromkeys(range(PARTITIONS), rows), pending=0)
    for partition in range(PARTITIONS):
        for place in range(KEYS):
            account = partition * KEYS + place * STRIDE % KEYS
            count = len(range(place, rows, KEYS))
            found.accounts[account] = (count, *sums(count), 0)
            rounded = count - count % TENTH
            found.ledger[account] = (rounded, sums(rounded)[0])
            if receipts := count // TWENTY_FIFTH:
                found.receipts[account] = (receipts, receipts)
            for number in range(count):
                branch = (account + number) % BRANCHES
                times, total = found.branches.get(branch, (0, 0))
                found.branches[branch] = (times + 1, total + number)
    return found


@pytest.fixture(scope="module")
def done() -> Snapshot:
    return snapshot(ROWS)


# -- the workload and the formulas -------------------------------------------------------------


def test_the_source_makes_what_the_formulas_count(tmp_path: Path) -> None:
    work = Work(str(tmp_path))
    set_rows(work, 1234)
    made = Reader(work, 1, 0)
    rows = [row for _ in range(9) for row in made.read(200)]
    assert len(rows) == 1234
    again = Reader(work, 1, 900).read(500)
    assert [(row.offset, row.value) for row in again] == [
        (row.offset, row.value) for row in rows[900:]
    ]
    of_account: dict[int, list[int]] = {}
    for row in rows:
        of_account.setdefault(row.value.account, []).append(row.value.number)
    for account in range(KEYS, 2 * KEYS):
        assert of_account[account] == list(range(deposits_of(account, 1234)))


def test_what_is_made_row_by_row_is_what_the_formulas_say(done: Snapshot) -> None:
    assert final(done, ROWS, tables=True) == []
    watcher = Watcher(WORK)
    assert watcher.look(snapshot(500)) == []
    assert watcher.look(done) == []


# -- anomalies in plain snapshots -----------------------------------------------------------------


def lose_a_deposit(now: Snapshot) -> None:
    """Of an account: a later one has come."""
    count, total, squares, astray = now.accounts[7]
    now.accounts[7] = (count, total + 1, squares, astray)


def double_a_deposit(now: Snapshot) -> None:
    count, total, squares, _ = now.accounts[7]
    now.accounts[7] = (count + 1, total + 3, squares + 9, 1)


def double_a_receipt(now: Snapshot) -> None:
    rows, different = now.receipts[7]
    now.receipts[7] = (rows + 1, different)


def ledger_without_state(now: Snapshot) -> None:
    count, total = now.ledger[7]
    now.ledger[7] = (count + TENTH, total)


def branch_without_account(now: Snapshot) -> None:
    count, total = now.branches[7]
    now.branches[7] = (count + 1, total)


def acknowledged_and_not_there(now: Snapshot) -> None:
    now.acknowledged[0] += KEYS


def go_back(now: Snapshot) -> None:
    """One deposit, and all that came of it."""
    count, *_ = now.accounts[7]
    now.accounts[7] = (count - 1, *sums(count - 1), 0)


def lose_an_entry(now: Snapshot) -> None:
    count, total = now.branches[7]
    now.branches[7] = (count - 1, total)


PLANTS: list[tuple[str, Callable[[Snapshot], None]]] = [
    ("lost write", lose_a_deposit),
    ("duplicate", double_a_deposit),
    ("duplicate", double_a_receipt),
    ("aborted read", ledger_without_state),
    ("aborted read", branch_without_account),
    ("unseen", acknowledged_and_not_there),
    ("nonmonotonic read", go_back),
    ("lost write", lose_an_entry),
]


@pytest.mark.parametrize(
    ("name", "harm"), PLANTS, ids=lambda value: getattr(value, "__name__", None)
)
def test_each_anomaly_is_called_by_its_name(
    done: Snapshot, name: str, harm: Callable[[Snapshot], None]
) -> None:
    watcher = Watcher(WORK)
    assert watcher.look(done) == []
    harmed = copy.deepcopy(done)
    harm(harmed)
    assert name in {found.what for found in watcher.look(harmed)}


def test_all_names_are_planted() -> None:
    assert {name for name, _ in PLANTS} == set(ANOMALIES)


@pytest.mark.parametrize("guarantee", ["weak", "tree"])
def test_where_no_order_is_promised_other_numbers_are_no_anomaly(
    done: Snapshot, guarantee: str
) -> None:
    watcher = Watcher(Work("nowhere", guarantee))
    harmed = copy.deepcopy(done)
    lose_a_deposit(harmed)
    assert watcher.look(harmed) == []
    assert {found.what for found in final(harmed, ROWS, tables=True)} == {"duplicate"}


# -- anomalies in real tables ---------------------------------------------------------------------

STORED_ROWS = 13_013
UPDATE_STATE = ";".join(
    f"UPDATE {table} SET value = jsonb_set(value, '{{{{{{0}}}}}}', to_jsonb((value ->> '{{0}}')::int + {{1}})) "
    "WHERE key = '7' AND computation = (SELECT id FROM computation WHERE name = '{2}')"
    for table in ("state", "state_change")
)
"""Whether it is folded or not."""

HARMS = [
    ("lost write", UPDATE_STATE.format("total", 5, "accounts")),
    ("duplicate", UPDATE_STATE.format("count", 1, "accounts")),
    ("duplicate", "INSERT INTO receipt SELECT * FROM receipt LIMIT 1"),
    ("aborted read", "DELETE FROM ledger WHERE account = 7"),
    ("aborted read", UPDATE_STATE.format("count", 1, "branches")),
    ("lost write", UPDATE_STATE.format("count", -1, "branches")),
    ("nonmonotonic read", "DELETE FROM receipt WHERE account = 7"),
    (
        "unseen",
        "UPDATE commit_record SET position = jsonb_set(position, '{reader,row}', '20000') "
        "WHERE position IS NOT NULL",
    ),
]


@pytest.fixture(scope="module")
def stored(
    postgres_url: Callable[[int], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Work]]:
    """A database in which the workload was done, by an engine in this process."""
    server = postgres_url(18)
    work = Work(str(tmp_path_factory.mktemp("work")))
    set_rows(work, STORED_ROWS)
    execute(server, "CREATE DATABASE campaign_done")
    url = make_conninfo(server, dbname="campaign_done")
    migrate(url, NAME)

    async def run() -> None:
        store = PostgresStore(url, NAME)
        await store.open()
        engine = Engine(build(work), store, close_at_end=True)
        await engine.start()
        await engine.run()
        await engine.stop()
        await store.close()

    asyncio.run(run())
    yield url, work
    execute(server, "DROP DATABASE campaign_done")


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_what_was_done_is_as_it_must_be(stored: tuple[str, Work]) -> None:
    url, work = stored
    with reader.connect(url) as connection:
        found = reader.read(connection, work, pending=True)
    assert Watcher(work).look(found) == []
    assert final(found, STORED_ROWS, tables=True) == []
    assert reader.judge(url, STORED_ROWS) == ([], 0)
    differences, _ = reader.judge(url, STORED_ROWS + 1)
    assert len(differences) == PARTITIONS


@pytest.mark.parametrize(("name", "harm"), HARMS)
def test_each_anomaly_is_seen_in_the_tables(stored: tuple[str, Work], name: str, harm: str) -> None:
    url, work = stored
    watcher = Watcher(work)
    with reader.connect(url) as connection:
        connection.execute("BEGIN")
        assert watcher.look(reader.read_within(connection, work, pending=True)) == []
        connection.execute(harm.encode())
        found = watcher.look(reader.read_within(connection, work, pending=True))
        connection.execute("ROLLBACK")
    assert name in {one.what for one in found}


# -- real runs -----------------------------------------------------------------------------------

SHORT = Run(
    name="short-0",
    seed=3,
    seconds=1.0,
    rest=0.3,
    unacked=1000,
    workers=2,
    wire=True,
    frames=True,
    bucket_seconds=3.0,
    faults={"kill": 1, "commit unknown, answered": 1, "kill after commit": 1, "storm": 1},
)  # fmt: skip


async def carried_out(run: Run, keep: Path) -> Result:
    said: list[str] = []
    result = await ledger.Ledger(run, keep, said.append).carry_out()
    print("\n".join(said), result.anomalies, result.told, result.errors, sep="\n")
    return result


async def test_some_seconds_of_several_faults(tmp_path: Path) -> None:
    result = await carried_out(SHORT, tmp_path / "kept")
    assert result.good, result
    assert result.records > 0
    assert result.looks > 2
    effective = {name for name, count in result.faults.items() if count.effective}
    assert {"kill", "kill after commit", "commit unknown, answered"} <= effective


BUGGY = {
    "fence skipped": Run(
        name="unfenced-0", seed=1, seconds=20, rest=1, faults={"suspend": 1}, plant="fence skipped"
    ),
    "dedup left out": Run(
        name="doubled-0", seed=1, seconds=10, rest=1, plant="dedup left out",
        faults={"kill after commit": 1, "kill": 1},
    ),
    "ACK before commit": Run(
        name="lost-0", seed=1, seconds=15, rest=1, plant="ACK before commit",
        faults={"kill between state and rows": 2, "backends": 1},
    ),
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("bug", PLANTED)
async def test_a_broken_build_is_found(bug: str, tmp_path: Path) -> None:
    result = await carried_out(BUGGY[bug], tmp_path / "kept")
    assert result.anomalies


@pytest.mark.soak
@pytest.mark.parametrize("run", one_round(1), ids=lambda run: run.name)
async def test_every_kind_of_run(run: Run, tmp_path: Path) -> None:
    shorter = msgspec.structs.replace(run, seconds=min(run.seconds, 60), lease_seconds=3.0)
    result = await carried_out(shorter, tmp_path / "kept")
    if result.refused:
        pytest.skip(result.refused)
    assert result.good, result


# -- the command ------------------------------------------------------------------------------------


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
    assert "Not everything held" in report


def test_when_the_time_is_over_it_says_that_more_is_to_do(
    tmp_path: Path, instead: list[str]
) -> None:
    assert command.main(arguments(tmp_path, "--hours", "0.0000001")) == command.NOT_REACHED
    assert not instead


def test_the_report_tells_what_was_not_run(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    results.write(path, Result("machines-0", 0, refused="no network namespace"))
    results.write(
        path, Result("kills-0", 0, differences=[], broken_chains=0, faults={"kill": FaultCount(3, 2, [1.0, 4.0])})
    )  # fmt: skip
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
    assert set(FAULTS) - named <= {"kill in split or merge"}
    assert all(fault.what for fault in FAULTS.values())


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


# -- the wire -----------------------------------------------------------------------------------------


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
