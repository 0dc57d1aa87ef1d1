"""``python -m tests.faults.travels [--records 60000] [--forks 20] [--restores 10] [--kills 8]``:
copies of a pipeline under load.

Two workers read a file that grows, and are killed again and again, while key intervals move, split
and merge. At random moments the pipeline is forked, or is brought back to a savepoint. In the end
the pipeline and each fork must have processed all records: their tables are compared with plain
arithmetic.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Settings, Stream, Table
from millwheel.computations import Windowed, count
from millwheel.store.address import StoreAddress
from millwheel.store.console.presence import present
from millwheel.store.copies.forks import fork
from millwheel.store.copies.replacing import restore
from millwheel.store.copies.savepoints import drop_savepoint, list_savepoints, make_savepoint
from millwheel.windows import Pane, Tumbling
from tests.faults.kill_flights import workplace
from tests.faults.service import Service

INPUT = Path(os.environ.get("TRAVELS_INPUT", "input"))
NAME = os.environ.get("TRAVELS_NAME", "bank")
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
KEYS = 300
WINDOW = timedelta(minutes=1)
BATCH = 100


class Pay(msgspec.Struct):
    account: int
    number: int


class Account(msgspec.Struct):
    payments: int = 0
    numbers: int = 0


class Total(msgspec.Struct):
    account: int
    payments: int
    numbers: int


class Minute(msgspec.Struct):
    start: datetime
    account: int
    payments: int


PAYS, TOTALS, PANES = Stream("pays", Pay), Stream("totals", Total), Stream("panes", Pane[int])


class AddUp(Computation[Pay, Account]):
    writes = (TOTALS,)

    async def process_record(self, record: Record[Pay], ctx: Context[Account]) -> None:
        pay, before = record.value, ctx.state
        ctx.state = Account(before.payments + 1, before.numbers + pay.number)
        ctx.produce(TOTALS, Total(pay.account, ctx.state.payments, ctx.state.numbers))


def minute(pane: Pane[int]) -> Minute:
    assert isinstance(pane.key, int)
    return Minute(pane.start, pane.key, pane.value)


def build(name: str) -> Pipeline:
    made = Pipeline(
        name,
        settings=Settings(
            bucket_seconds=2.0, placement_seconds=0.3, intervals=4, lease_seconds=3.0
        ),
    )
    made.inject(
        PAYS,
        JsonLines(INPUT / "pays.jsonl", follow=True),
        timestamp=lambda pay: BEGIN + timedelta(seconds=pay.number),
    )
    by_account = PAYS.by(lambda pay: pay.account)
    made.add(AddUp(), by_account)
    made.add(Windowed(Tumbling(WINDOW), count, PANES), by_account, name="minutes")
    made.sink(TOTALS, Table("total", Total, key=("account",)))
    made.sink(PANES, Table("minute", Minute, key=("start", "account")), row=minute)
    return made


pipeline = build(NAME)


def account_of(number: int) -> int:
    return number * 7 % KEYS


class Writer(threading.Thread):
    """Appends so many payments at a rate, or until it is ended."""

    def __init__(
        self,
        directory: Path,
        records: int | None,
        per_second: float,
        ends: threading.Event | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self._path = directory / "pays.jsonl"
        self._records, self._pause = records, BATCH / per_second
        self._ends = ends or threading.Event()
        self.written = 0
        self._path.touch()

    def run(self) -> None:
        while not self._ends.is_set() and self.written != self._records:
            high = self.written + BATCH
            if self._records is not None:
                high = min(high, self._records)
            self._append(range(self.written, high))
            self.written = high
            self._ends.wait(self._pause)

    def _append(self, numbers: range) -> None:
        with self._path.open("ab") as file:
            for number in numbers:
                file.write(msgspec.json.encode(Pay(account_of(number), number)) + b"\n")


def differences(url: str, schema: str, records: int) -> list[str]:
    """Compared with arithmetic: totals of all accounts, and the windows that must be closed."""
    totals: dict[Any, Any] = {}
    minutes: dict[Any, Any] = {}
    closed = (records - 1) // 60 * 60
    for number in range(records):
        account = account_of(number)
        payments, numbers = totals.get(account, (0, 0))
        totals[account] = payments + 1, numbers + number
        if number < closed:
            start = BEGIN + timedelta(minutes=number // 60)
            minutes[start, account] = minutes.get((start, account), 0) + 1
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        found: dict[Any, Any] = {a: (p, n) for a, p, n in connection.execute("SELECT * FROM total")}
        windows: dict[Any, Any] = {
            (start, account): payments
            for start, account, payments in connection.execute("SELECT * FROM minute")
        }
    return [
        f"{schema} {key}: {there.get(key)}, not {wanted.get(key)}"
        for there, wanted in ((found, totals), (windows, minutes))
        for key in {*there, *wanted}
        if there.get(key) != wanted.get(key)
    ]


def is_done(url: str, schema: str, records: int) -> bool:
    """Whether all payments are in the totals, and each window is closed that must be."""
    closed = (records - 1) // 60 * 60
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        text = "SELECT (SELECT sum(payments) FROM total), (SELECT sum(payments) FROM minute)"
        try:
            row = connection.execute(text).fetchone()
        except psycopg.errors.UndefinedTable:
            return False
    return row is not None and (row[0] or 0) >= records and (row[1] or 0) >= closed


def run_to_end(directory: Path, url: str, name: str, records: int) -> None:
    """Run a fork by its own process until it has all records."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TRAVELS_INPUT": str(directory),
        "TRAVELS_NAME": name,
    }
    command = [sys.executable, "-m", "millwheel", "worker", "tests.faults.travels:pipeline"]
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--store", url], cwd=directory, env=environment, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 300
        while not is_done(url, name, records):
            assert process.poll() is None, (directory / f"{name}.log").read_text()[-4000:]
            assert time.monotonic() < deadline, f"{name} does not end"
            time.sleep(0.3)
    finally:
        process.terminate()
        process.wait(60)


def travel(
    directory: Path,
    records: int,
    forks: int,
    restores: int,
    kills: int,
    *,
    per_second: float = 2000.0,
    seed: int = 1,
    say: Callable[[str], None] = print,
) -> None:
    random = Random(seed)
    service = Service(directory, "tests.faults.travels:pipeline", "bank", "TRAVELS_INPUT")
    writer = Writer(directory, records, per_second)
    for _ in range(2):
        service.start()
    service.wait("SELECT count(*) FROM generation", lambda found: found > 0)
    url = service.url()
    writer.start()
    service.wait("SELECT count(*) FROM total", lambda found: found > 0)
    deeds = ["fork"] * forks + ["restore"] * restores + ["kill"] * kills
    random.shuffle(deeds)
    pause = records / per_second / (len(deeds) + 1)
    names: list[str] = []
    saved = 0
    for deed in deeds:
        time.sleep(random.uniform(0.2, 1.8) * pause)
        began = time.monotonic()
        if deed == "kill":
            service.kill(random)
        elif deed == "fork":
            names.append(f"fork{len(names)}")
            made = fork(url, "bank", names[-1])
            say(f"{names[-1]}: {made.rows:,} rows in {time.monotonic() - began:.1f} s")
        else:
            if not saved or random.random() < 0.4:
                saved += 1
                make_savepoint(url, "bank", f"s{saved}")
                time.sleep(random.uniform(0.0, 2.0) * pause)
                began = time.monotonic()
            found = restore(url, f"bank@s{random.randint(1, saved)}")
            seconds = time.monotonic() - began
            say(f"restored {found.savepoint}, {found.sessions} sessions, {seconds:.1f} s")
            for one in list_savepoints(url, "bank"):
                if one.label.startswith("replaced"):
                    drop_savepoint(url, one.name)
    writer.join()
    deadline = time.monotonic() + 300
    while not is_done(url, "bank", records):
        for worker in service.workers:
            assert worker.poll() is None, (worker.returncode, service.log())
        assert time.monotonic() < deadline, service.log()
        time.sleep(0.3)
    with present(StoreAddress.parse(str(directory / "store"))):  # it outlives the workers
        service.stop()
        assert differences(url, "bank", records) == []
        say(f"bank: {records:,} payments, {service.kills} kills: equal")
        for name in names:
            run_to_end(directory, url, name, records)
            assert differences(url, name, records) == [], name
            say(f"{name}: equal")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--forks", type=int, default=20)
    parser.add_argument("--restores", type=int, default=10)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with workplace() as place:
        travel(
            place, options.records, options.forks, options.restores, options.kills,
            seed=options.seed,
        )  # fmt: skip
