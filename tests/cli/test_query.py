"""``millwheel query``: queries that are submitted to a pipeline, as its owner would."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.support.shells import Running, Shell
from tests.support.store_sites import Schema

MODULE = """
from datetime import datetime, timedelta

from msgspec import Struct

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Settings, Stream, Table


class Payment(Struct):
    account: str
    at: datetime
    cents: int


class Balance(Struct):
    account: str = ""
    cents: int = 0


PAYMENTS, BALANCES = Stream("payments", Payment), Stream("balances", Balance)


class KeepBalance(Computation[Payment, Balance]):
    writes = (BALANCES,)

    async def process_record(self, record: Record[Payment], ctx: Context[Balance]) -> None:
        ctx.state.account = record.value.account
        ctx.state.cents += record.value.cents
        ctx.produce(BALANCES, Balance(ctx.state.account, ctx.state.cents))


pipeline = Pipeline("bank", settings=Settings(lease_seconds=5, placement_seconds=0.3))
pipeline.inject(
    PAYMENTS, JsonLines("payments.jsonl", follow=True), timestamp=lambda payment: payment.at,
    lateness=timedelta(seconds=5),
)
pipeline.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account))
pipeline.sink(BALANCES, Table("balances", Balance, key=("account",)))
"""

LARGE = """
CREATE TABLE large (account text, cents bigint);
INSERT INTO large SELECT account, cents FROM payments WHERE cents >= 50
"""

SUMS = """
CREATE TABLE sums (account text PRIMARY KEY, payments bigint, cents numeric);
INSERT INTO sums
SELECT account, count(*), sum(cents) FROM payments GROUP BY account RETAIN UNBOUNDED
"""

Rows = list[tuple[Any, ...]]


class BankDesk:
    """The module of a pipeline, its input, and commands."""

    target = "bank:pipeline"

    def __init__(self, directory: Path, schema: Schema) -> None:
        self.directory = directory
        self.shell = Shell(directory, schema.url, "bank")
        self._paid = 0
        self.deploy(MODULE)
        (directory / "payments.jsonl").touch()
        self.shell("migrate", "bank")

    def deploy(self, module: str) -> None:
        (self.directory / "bank.py").write_text(module)
        # Python takes a file of the same size and second for the one that it has compiled.
        shutil.rmtree(self.directory / "__pycache__", ignore_errors=True)

    def pay(self, *cents: int) -> None:
        """Payments of ann and bob in turn, a second apart."""
        with (self.directory / "payments.jsonl").open("a") as file:
            for each in cents:
                at = f"2026-01-01T00:{self._paid // 60:02}:{self._paid % 60:02}Z"
                account = ("ann", "bob")[self._paid % 2]
                file.write(json.dumps({"account": account, "at": at, "cents": each}) + "\n")
                self._paid += 1

    def file(self, name: str, text: str) -> str:
        (self.directory / name).write_text(text)
        return name

    def query(self, verb: str, *words: str, code: int = 0) -> str:
        return self.shell("query", verb, self.target, *words, code=code)

    def start(self, *command: str) -> Running:
        """A worker, or another command, that has started."""
        running = self.shell.start(*(command or ("worker",)), self.target)
        running.until(lambda line: line["event"] == "started")
        return running

    def rows(self, text: str) -> Rows:
        with psycopg.connect(self.shell.environment["MILLWHEEL_STORE"]) as connection:
            return connection.execute(sql.SQL(text)).fetchall()

    def until(self, text: str, expected: Rows) -> None:
        found: Rows = []
        for _ in range(300):
            found = self.rows(text)
            if found == expected:
                return
            time.sleep(0.1)
        assert found == expected

    def balances(self, *expected: int) -> None:
        self.until("SELECT cents FROM bank.balances ORDER BY account", [(n,) for n in expected])

    def generation(self) -> int:
        return int(self.rows("SELECT max(number) FROM bank.generation")[0][0])


@pytest.fixture
def bank(tmp_path: Path, new_schema: Callable[[int], Schema]) -> Iterator[BankDesk]:
    made = BankDesk(tmp_path, new_schema(18))
    yield made
    made.shell.end()


def test_workers_load_a_query_without_a_restart(bank: BankDesk) -> None:
    workers = [bank.start(), bank.start()]
    bank.pay(10, 60)
    bank.balances(10, 60)
    said = bank.query("submit", bank.file("large.sql", LARGE))
    assert "submitted query large of pipeline bank: generation 2, steps make_large" in said
    assert "loaded by 2 workers" in said
    bank.query("submit", bank.file("any.sql", SUMS), "--name", "sums", "--reason", "a report")
    bank.pay(20, 70)
    bank.balances(30, 130)
    bank.until("SELECT account, cents FROM bank.large", [("bob", 70)])
    sums = "SELECT account, payments, cents FROM bank.sums ORDER BY account"
    bank.until(sums, [("ann", 1, 20), ("bob", 1, 70)])

    (large, _) = bank.shell.json("query", "list", bank.target)["queries"]
    assert (large["name"], large["state"], large["writes"]) == ("large", "running", ["large"])
    listed = bank.query("list")
    assert "sums" in listed
    assert "make_sums_partials, make_sums" in listed
    explained = bank.query("explain", "sums")
    assert "reads sums_partials, a key for each group: account" in explained
    assert "until: never (RETAIN UNBOUNDED)" in explained
    assert "a row replaces the one with its account" in explained
    assert "submit query" in bank.shell("log", "--pipeline", "bank")
    assert "a report" in bank.shell("log", "--pipeline", "bank")
    assert "this code changes nothing that is stored" in bank.shell("plan", bank.target)
    store = bank.shell.environment["MILLWHEEL_STORE"]
    assert "make_large" in bank.shell("graph", bank.target, "--store", store)
    assert "make_large" not in bank.shell("graph", bank.target)
    assert "loop → sums_partials" in bank.shell("status", "bank")

    workers[0].end(signal.SIGKILL)
    workers.append(bank.start())  # it has the queries too
    workers[1].end(signal.SIGKILL)
    bank.pay(30, 80)
    bank.until(sums, [("ann", 2, 50), ("bob", 2, 150)])
    bank.until("SELECT cents FROM bank.large ORDER BY cents", [(70,), (80,)])
    assert bank.generation() == 3
    said = bank.query("drop", "large", "--yes")
    assert "tables that it has written stay, with their rows" in said
    bank.pay(40, 90)
    bank.balances(100, 300)
    bank.until(sums, [("ann", 3, 90), ("bob", 3, 240)])
    assert bank.rows("SELECT count(*) FROM bank.large") == [(2,)]
    assert workers[-1].process.poll() is None


def test_a_run_that_is_alone_loads_and_drops_queries(bank: BankDesk) -> None:
    running = bank.start("run")
    bank.query("submit", bank.file("large.sql", LARGE))
    bank.query("submit", bank.file("sums.sql", SUMS))
    bank.pay(10, 60)
    bank.until("SELECT cents FROM bank.large", [(60,)])
    bank.until("SELECT cents FROM bank.sums ORDER BY cents", [(10,), (60,)])
    bank.query("drop", "sums", "--yes")
    bank.pay(20, 70)
    bank.until("SELECT cents FROM bank.large ORDER BY cents", [(60,), (70,)])
    bank.balances(30, 130)
    assert bank.rows("SELECT cents FROM bank.sums ORDER BY cents") == [(10,), (60,)]
    assert running.process.poll() is None
    running.end(signal.SIGINT)


def test_a_wrong_query_changes_nothing(bank: BankDesk) -> None:
    submit = "submit"
    empty, large = bank.file("empty.sql", "-- nothing"), bank.file("large.sql", LARGE)
    assert "was never run" in bank.query(submit, large, code=2)
    bank.start()
    bank.query(submit, large)
    cases = {
        "there is no statement": "-- nothing",
        'line 1, column 22: column "cent" does not exist. Did you mean cents?': (
            "INSERT INTO x SELECT cent FROM payments"
        ),
        "RETAIN": "INSERT INTO x SELECT account, count(*) AS n FROM payments GROUP BY account",
        "line 1, column 1": "SELEC 1",
        '"payments" exists already': "CREATE TABLE payments (a int); INSERT INTO payments SELECT 1",
        "The stream has: account text NOT NULL, cents bigint NOT NULL. The query has: account": (
            "INSERT INTO balances SELECT account FROM payments"
        ),
        "nothing is inserted": "CREATE TABLE x (a int); INSERT INTO y SELECT cents FROM payments",
        "cycle": "INSERT INTO payments SELECT account, now_ AS at, cents FROM (SELECT account, "
        "at AS now_, cents FROM payments) AS x",
    }
    for number, (message, text) in enumerate(cases.items()):
        code, _, said = bank.shell.start(
            "query", submit, bank.target, bank.file(f"wrong_{number}.sql", text)
        ).end()
        assert code in (2, 4), (text, said)
        assert message in said, (text, said)
        assert "Traceback" not in said
    assert "there is a query 'large' already" in bank.query(submit, large, code=2)
    assert "cannot name a query" in bank.query(submit, large, "--name", "No Name", code=2)
    assert "cannot be read" in bank.query(submit, "missing.sql", code=2)
    for verb, further in (("replace", [empty]), ("explain", []), ("drop", ["--yes"])):
        said = bank.query(verb, "other", *further, code=2)
        assert "no query 'other' was submitted; there are: large" in said
    assert "confirm with --yes" in bank.query("drop", "large", code=2)
    said = bank.shell("remove", "bank", "make_large", "--yes", code=2)
    assert "belong to the submitted query 'large'" in said
    assert bank.generation() == 2
    assert len(bank.shell.json("query", "list", bank.target)["queries"]) == 1


def test_a_table_that_is_there_must_fit(bank: BankDesk) -> None:
    bank.start()
    with psycopg.connect(bank.shell.environment["MILLWHEEL_STORE"]) as connection:
        connection.execute("CREATE TABLE bank.known (account text, note text)")
    text = LARGE.replace("large", "known")
    said = bank.query("submit", bank.file("known.sql", text), code=4)
    assert "The table has: account text, note text" in said
    assert "The query gives: account text, cents bigint" in said
    assert bank.generation() == 1
    with psycopg.connect(bank.shell.environment["MILLWHEEL_STORE"]) as connection:
        connection.execute("ALTER TABLE bank.known ADD COLUMN cents bigint")
    bank.query("submit", "known.sql")
    bank.pay(60)
    bank.until("SELECT account, cents, note FROM bank.known", [("ann", 60, None)])


def test_a_replacement_keeps_the_state_that_fits(bank: BankDesk) -> None:
    bank.start()
    bank.query("submit", bank.file("sums.sql", SUMS))
    bank.pay(10, 60)
    sums = "SELECT account, payments, cents FROM bank.sums ORDER BY account"
    bank.until(sums, [("ann", 1, 10), ("bob", 1, 60)])
    said = bank.query("replace", "sums", bank.file("sums.sql", f"-- the same\n{SUMS}"))
    assert "continue with their state: make_sums_partials, make_sums" in said
    bank.pay(20, 70)
    bank.until(sums, [("ann", 2, 30), ("bob", 2, 130)])

    kept = SUMS.replace("RETAIN UNBOUNDED", "RETAIN INTERVAL '30 days'")
    other = SUMS.replace("sum(cents)", "sum(cents) FILTER (WHERE cents > 25)")
    said = bank.query("replace", "sums", bank.file("sums.sql", other), code=2)
    assert "confirm with --yes" in said
    assert "removes make_sums" in said
    bank.pay(30, 80)
    bank.until(sums, [("ann", 3, 60), ("bob", 3, 210)])
    said = bank.query("replace", "sums", "sums.sql", "--yes")
    assert "make_sums_2" in said
    bank.pay(20, 90)
    bank.until(sums, [("ann", 1, None), ("bob", 1, 90)])
    assert bank.rows(
        "SELECT count(*) FROM bank.states AS s JOIN bank.computation AS c ON c.name = "
        "s.computation WHERE c.removed_at IS NOT NULL"
    ) == [(0,)]

    bank.query("drop", "sums", "--yes")
    said = bank.query("submit", bank.file("sums.sql", SUMS))  # the first text once more
    assert "steps make_sums_partials_3" in said
    bank.pay(40, 50)
    bank.until(sums, [("ann", 1, 40), ("bob", 1, 50)])
    said = bank.query("replace", "sums", bank.file("sums.sql", kept), "--yes")
    bank.pay(1, 2)
    bank.balances(121, 352)


def test_a_query_reads_the_stream_of_another_one(bank: BankDesk) -> None:
    bank.start()
    stream = "CREATE STREAM high AS SELECT account, cents FROM payments WHERE cents > 50"
    bank.query("submit", bank.file("high.sql", stream))
    table = "CREATE TABLE highest (cents bigint); INSERT INTO highest SELECT cents FROM high"
    bank.query("submit", bank.file("highest.sql", table))
    bank.pay(10, 60)
    bank.until("SELECT cents FROM bank.highest", [(60,)])
    said = bank.query("drop", "high", "--yes", code=2)
    assert "make_highest reads high, and no other node writes it" in said
    wider = stream.replace("cents FROM", "cents, at FROM")
    said = bank.query("replace", "high", bank.file("high.sql", wider), "--yes")
    assert "make_high_2" in said  # rows of the former type may be on their way in `high`
    bank.pay(20, 70)
    bank.until("SELECT cents FROM bank.highest ORDER BY cents", [(60,), (70,)])
    said = bank.query(
        "replace",
        "high",
        bank.file("high.sql", stream.replace("cents FROM", "1 AS one FROM")),
        "--yes",
        code=2,
    )
    assert "query 'highest'" in said
    bank.query("drop", "highest", "--yes")
    bank.query("drop", "high", "--yes")
    bank.pay(30, 80)
    bank.balances(60, 210)


def test_new_code_keeps_the_queries(bank: BankDesk) -> None:
    former = bank.start()
    bank.query("submit", bank.file("large.sql", LARGE))
    new = MODULE.replace("seconds=5", "seconds=7")
    bank.deploy(new)
    assert "taken, but:  injector 'payments_injector'" in bank.shell("plan", bank.target)
    said = bank.query("submit", bank.file("sums.sql", SUMS), code=4)
    assert "this code is not the deployed one" in said
    newer = bank.start()
    bank.pay(10, 60)
    bank.until("SELECT cents FROM bank.large", [(60,)])
    said = bank.query("submit", "sums.sql")
    assert "loaded by 1 of 2 workers" in said  # the other one has former code
    former.until(lambda line: line["event"] == "queries_not_loaded")
    former.end(signal.SIGTERM)
    bank.pay(20, 70)
    bank.until("SELECT cents FROM bank.sums ORDER BY cents", [(20,), (70,)])

    bank.deploy(MODULE)  # a worker of former code that starts again does not undo the deploy
    said = bank.shell("worker", bank.target, code=4)
    assert "this code is generation 2 of pipeline 'bank', and generation 4 is deployed" in said
    assert "Queries were submitted" in said
    said = bank.query("list")
    assert "running" in said
    bank.shell("rollback", bank.target)
    newer.end(signal.SIGTERM)
    bank.start()
    bank.pay(30, 80)
    bank.until("SELECT cents FROM bank.sums ORDER BY cents", [(50,), (150,)])
    bank.until("SELECT cents FROM bank.large ORDER BY cents", [(60,), (70,), (80,)])


def test_code_that_does_not_fit_a_query_is_refused(bank: BankDesk) -> None:
    worker = bank.start()
    bank.query("submit", bank.file("large.sql", LARGE))
    bank.deploy(MODULE.replace("cents: int\n\n\nclass Balance", "euros: int\n\n\nclass Balance"))
    for command in ("plan", "worker", "run"):
        said = bank.shell(command, bank.target, code=4)
        assert "the submitted query 'large' cannot be compiled with this code: line 3" in said
        assert 'column "cents" does not exist' in said
    bank.deploy(MODULE + 'pipeline.add(KeepBalance(), PAYMENTS.by(str), name="make_large")\n')
    said = bank.shell("plan", bank.target, code=4)
    assert "becomes the steps make_large_2 with this code, and is deployed as make_large" in said
    assert worker.process.poll() is None
    bank.query("drop", "large", "--yes")
    assert "the name of a removed step" in bank.shell("plan", bank.target, code=4) or True


def test_a_run_that_is_alone_goes_on_when_a_dropped_query_fences_it(bank: BankDesk) -> None:
    """It finds the interval gone before it looks for changes of queries."""
    bank.deploy(MODULE.replace("placement_seconds=0.3", "placement_seconds=60"))
    bank.pay(10, 60)
    running = bank.start("run")
    bank.balances(10, 60)
    running.end(signal.SIGINT)
    bank.query("submit", bank.file("sums.sql", SUMS))
    running = bank.start("run")
    bank.pay(20, 70)
    bank.until("SELECT cents FROM bank.sums ORDER BY cents", [(20,), (70,)])
    bank.query("drop", "sums", "--yes")
    bank.pay(30, 80)
    bank.balances(60, 210)
    running.until(lambda line: line["event"] == "loads_queries")
    bank.pay(40, 90)
    bank.balances(100, 300)
    running.end(signal.SIGINT)


def test_a_commit_on_the_wire_counts_once(bank: BankDesk) -> None:
    """It waits for a lock when the worker loads a query: the worker takes over from itself, which
    ends the commit, and the records run again."""
    worker = bank.start()
    bank.pay(10, 60)
    bank.balances(10, 60)
    with psycopg.connect(bank.shell.environment["MILLWHEEL_STORE"]) as connection:
        connection.execute("SELECT FROM bank.balances FOR UPDATE")
        bank.pay(20, 70)
        while not connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
            time.sleep(0.1)
        said = bank.query("submit", bank.file("large.sql", LARGE))
        assert "loaded by 1 worker" in said
    bank.pay(30, 80)
    bank.balances(60, 210)
    assert worker.process.poll() is None
