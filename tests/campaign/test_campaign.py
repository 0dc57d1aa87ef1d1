"""The fault campaign: what it sees is there, and what is there it sees."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millwheel.runtime.engine import Engine
from millwheel.store.console.migrate import migrate
from millwheel.store.postgres.store import PostgresStore
from tests.campaign import evidence, ledger, reader
from tests.campaign.checks import ANOMALIES, Snapshot, Watcher, final, sums
from tests.campaign.looker import connect
from tests.campaign.plan import Run, one_round
from tests.campaign.planted import PLANTED
from tests.campaign.results import Result
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


async def test_the_source_makes_what_the_formulas_count(tmp_path: Path) -> None:
    work = Work(str(tmp_path))
    set_rows(work, 1234)
    made = Reader(work, 1, 0)
    rows = [row for _ in range(9) for row in await made.read(200)]
    assert len(rows) == 1234
    again = await Reader(work, 1, 900).read(500)
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
CHANGED = "jsonb_set(value, '{{{0}}}', to_jsonb((value ->> '{0}')::int + {1}))"
OF_IT = "computation = (SELECT id FROM computation WHERE name = '{2}')"
UPDATE_STATE = (
    f"UPDATE state SET value = {CHANGED} WHERE key = '7' AND {OF_IT};"
    "UPDATE state_change SET values = ("
    f"SELECT array_agg(CASE WHEN key = '7' THEN {CHANGED} ELSE value END ORDER BY place) "
    "FROM unnest(keys, values) WITH ORDINALITY AS e (key, value, place)"
    f") WHERE {OF_IT}"
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
        (
            "UPDATE commit_record SET position = jsonb_set(position, '{reader,row}', '20000') "
            "WHERE position IS NOT NULL"
        ),
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
        engine = Engine(build(work), store)
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
    with connect(url) as connection:
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
    with connect(url) as connection:
        connection.execute("BEGIN")
        assert watcher.look(reader.read_within(connection, work, pending=True)) == []
        connection.execute(harm.encode())
        found = watcher.look(reader.read_within(connection, work, pending=True))
        connection.execute("ROLLBACK")
    assert name in {one.what for one in found}


def test_the_tables_are_kept_as_they_are_at_the_first_anomaly(
    stored: tuple[str, Work], tmp_path: Path
) -> None:
    url, work = stored
    kept = tmp_path / "first anomaly"
    looking = reader.Reader(url, work, keep=kept)
    with connect(url) as connection:
        looking.look(connection)
        assert not kept.exists()
        rows = connection.execute("DELETE FROM receipt WHERE account = 7 RETURNING *").fetchall()
        looking.look(connection)
        for row in rows:
            connection.execute("INSERT INTO receipt VALUES (%s, %s)", row)
        ((states,),) = connection.execute("SELECT count(*) FROM state")
    assert looking.anomalies["nonmonotonic read"] == 1
    assert len(list(kept.iterdir())) == len(evidence.BUCKETED) + len(evidence.WHOLE)
    header, *lines = (kept / "state.csv").read_text().splitlines()
    assert header.startswith("xmin,slot,")
    assert len(lines) == states
    assert (kept / "commit_record.csv").read_text().splitlines()[0].startswith("place,xmin,")


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


@pytest.mark.soak
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
