"""Queries that are submitted to workers under faults, replaced and dropped.

``python -m tests.faults.live_queries [--kills 20]``

A writer sends payments while two workers run. Queries are submitted, replaced by texts that keep
their state, and dropped, while workers are killed. In the end the pipeline's own table must equal
the sums of all payments, and the tables of the queries those of the payments of their lifetime.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from millwheel import Computation, Context, Inbox, Pipeline, Record, Settings, Stream, Table
from millwheel.client import Client
from millwheel.errors import MillwheelError
from millwheel.services import live_queries
from millwheel.store.console.administration import drop_query
from tests.support.worker_processes import LEASE_SECONDS, Workers

NAME = "live_bank"
TARGET = "tests.faults.live_queries:pipeline"
START = datetime(2024, 1, 1, tzinfo=UTC)
ACCOUNTS = 50
SECONDS = 60
"""For workers to load a query, and for rows to arrive."""


class Payment(Struct):
    """The n-th payment is of the n-th second."""

    number: int
    at: datetime
    account: int
    cents: int


class Balance(Struct):
    account: int = 0
    payments: int = 0
    cents: int = 0


PAYMENTS, BALANCES = Stream("payments", Payment), Stream("balances", Balance)


class KeepBalance(Computation[Payment, Balance]):
    writes = (BALANCES,)

    async def process_record(self, record: Record[Payment], ctx: Context[Balance]) -> None:
        state = ctx.state
        state.account = record.value.account
        state.payments += 1
        state.cents += record.value.cents
        ctx.produce(BALANCES, Balance(state.account, state.payments, state.cents))


def pipeline() -> Pipeline:
    """The pipeline of the code: balances of all accounts."""
    made = Pipeline(NAME, settings=Settings(lease_seconds=LEASE_SECONDS, placement_seconds=0.3))
    made.inject(PAYMENTS, Inbox(), timestamp=lambda payment: payment.at)
    made.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account))
    made.sink(BALANCES, Table("balances", Balance, key=("account",)))
    return made


def payment(number: int) -> Payment:
    at = START + timedelta(seconds=number)
    return Payment(number, at, number * number % ACCOUNTS, number % 97)


def query_text(table: str, version: int) -> str:
    """Copies of payments, their sums by account, and their number by minute."""
    return f"""
        -- version {version}
        CREATE TABLE {table}_copies (number bigint, version bigint);
        CREATE TABLE {table}_sums (account bigint PRIMARY KEY, payments bigint, cents numeric);
        CREATE TABLE {table}_minutes (minute timestamptz, payments bigint, cents numeric);
        INSERT INTO {table}_copies SELECT number, {version} FROM payments;
        INSERT INTO {table}_sums
        SELECT account, count(*), sum(cents) FROM payments GROUP BY account RETAIN UNBOUNDED;
        INSERT INTO {table}_minutes
        SELECT window_start, count(*), sum(cents)
        FROM TUMBLE(payments, at, INTERVAL '1 minute') GROUP BY window_start;
    """


class LiveBank:
    """Workers, a writer and an operator.

    Args:
        choice: draws the moments of kills.
    """

    def __init__(self, workers: Workers, choice: random.Random) -> None:
        self.workers = workers
        self.url = workers.url
        self._choice = choice
        self.wrong: list[str] = []
        self.sent = 0
        self._is_writing = asyncio.Event()
        self._is_writing.set()
        self._rests = asyncio.Event()
        self.kills_left = 0

    async def write(self) -> None:
        """Send payments until cancelled, but not while the writer has to pause."""
        client = Client(NAME, self.url)
        try:
            while True:
                self._rests.set()
                await self._is_writing.wait()
                self._rests.clear()
                numbers = range(self.sent, self.sent + self._choice.randint(1, 40))
                await client.send_all(PAYMENTS, [payment(number) for number in numbers])
                self.sent = numbers.stop
                await asyncio.sleep(0.02)
        finally:
            await client.close()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """The writer pauses, between two transactions."""
        self._is_writing.clear()
        await asyncio.sleep(0)
        await self._rests.wait()
        yield
        self._is_writing.set()

    async def kill(self) -> None:
        """Kill a worker a moment later, and start another one."""
        if not self.kills_left:
            return
        self.kills_left -= 1
        await asyncio.sleep(self._choice.uniform(0, 1.0))
        self.workers.replace(self._choice)

    async def store(self, name: str, version: int, *, is_new: bool) -> live_queries.PreparedQuery:
        """Submit or replace a query while a worker is killed; returns when all workers have it."""
        text = query_text(name, version)

        def change() -> tuple[live_queries.PreparedQuery, int]:
            prepared = live_queries.prepare(pipeline(), self.url, name, text, is_new=is_new)
            by = {"by": "a test", "reason": ""}
            return prepared, live_queries.carry_out(prepared, self.url, **by)

        killing = asyncio.create_task(self.kill())
        prepared, generation = await asyncio.to_thread(change)
        await killing
        await self._loaded(generation)
        return prepared

    async def drop(self, name: str) -> None:
        killing = asyncio.create_task(self.kill())
        await asyncio.to_thread(drop_query, self.url, NAME, name)
        await killing

    async def _loaded(self, generation: int) -> None:
        loaded = await asyncio.to_thread(
            live_queries.wait_for_workers, pipeline(), self.url, generation, SECONDS
        )
        if not loaded.by_all:
            self.wrong.append(f"generation {generation}: {loaded}")
        text = (
            "SELECT pid FROM SCHEMA.worker WHERE NOT stopped AND lease_until > now() AND "
            f"generation >= {generation}"
        )
        running = {one.pid for one in self.workers.running}
        await self.until(
            lambda: running <= {pid for (pid,) in self.workers.query(text)},
            f"generation {generation} in the processes {running}",
        )

    def numbers(self, name: str) -> Counter[int]:
        rows = self.workers.query(f"SELECT number FROM SCHEMA.{name}_copies")
        return Counter(number for (number,) in rows)

    async def until(self, found: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not await asyncio.to_thread(found):
            if time.monotonic() > deadline or not self.workers.alive:
                self.wrong.append(f"not within {SECONDS} s: {what}")
                return
            await asyncio.sleep(0.1)

    # -- the life of a query ----------------------------------------------------------------

    async def live(self, name: str) -> None:
        """Submit a query, replace it twice, and drop it when all rows are there."""
        await self.store(name, 1, is_new=True)
        first = self.sent
        await self.until(lambda: bool(self.numbers(name)), f"a first copy in {name}")
        same = await self.store(name, 1, is_new=False)
        await asyncio.sleep(self._choice.uniform(0.3, 1.0))
        changed = await self.store(name, 2, is_new=False)
        self.wrong += [
            f"{name}: {prepared.removed} do not continue"
            for prepared in (same, changed)
            if prepared.removed
        ]
        await asyncio.sleep(self._choice.uniform(0.3, 1.0))
        async with self.paused():
            last = self.sent
            wanted = set(range(first, last))
            await self.until(lambda: wanted <= self.numbers(name).keys(), f"copies in {name}")
            copies = self.numbers(name)
            self._check_copies(name, copies, range(first, last))
            await self.until(lambda: self._sums(name) == sums_of(copies), f"sums of {name}")
            minutes = full_minutes(range(first, last - 1))
            await self.until(lambda: minutes <= self._minutes(name), f"minutes of {name}")
            await self.drop(name)
        await asyncio.sleep(self._choice.uniform(0.3, 1.0))
        if self.numbers(name) != copies:
            self.wrong.append(f"{name} got rows after it was dropped")
        self._check_minutes(name, minutes)
        async with self.paused():
            await self.check_balances()

    def _check_copies(self, name: str, copies: Counter[int], life: range) -> None:
        twice = [number for number, count in copies.items() if count > 1]
        missing = [number for number in life if number not in copies]
        if twice or missing or max(copies, default=0) >= self.sent:
            self.wrong.append(f"{name}: twice {twice[:9]}, missing {missing[:9]} of {life}")
        rows = self.workers.query(f"SELECT DISTINCT version FROM SCHEMA.{name}_copies")
        if sorted(rows) != [(1,), (2,)]:
            self.wrong.append(f"{name}: versions {rows}")

    def _sums(self, name: str) -> dict[int, tuple[int, int]]:
        rows = self.workers.query(f"SELECT account, payments, cents FROM SCHEMA.{name}_sums")
        return {account: (payments, int(cents)) for account, payments, cents in rows}

    def _minutes(self, name: str) -> set[int]:
        rows = self.workers.query(f"SELECT minute FROM SCHEMA.{name}_minutes")
        return {minute_of(minute) for (minute,) in rows}

    def _check_minutes(self, name: str, full: set[int]) -> None:
        """Windows that begin and end in the query's lifetime have all of their payments, once."""
        rows = self.workers.query(f"SELECT minute, payments, cents FROM SCHEMA.{name}_minutes")
        for moment, payments, cents in rows:
            minute = minute_of(moment)
            numbers = range(minute * 60, minute * 60 + 60)
            expected = 60, sum(payment(number).cents for number in numbers)
            if minute in full and (payments, int(cents)) != expected:
                self.wrong.append(f"{name}, {moment}: {payments, cents} in place of {expected}")
        if len(rows) != len({moment for moment, _, _ in rows}):
            self.wrong.append(f"{name} has minutes twice")

    async def check_balances(self) -> None:
        """The table of the code has all payments, once."""
        expected = sums_of(Counter(range(self.sent)))

        def rows_of(text: str) -> dict[int, tuple[int, int]]:
            return {row[0]: (row[1], row[2]) for row in self.workers.query(text)}

        table = "SELECT account, payments, cents FROM SCHEMA.balances"
        await self.until(lambda: rows_of(table) == expected, f"balances of {self.sent} payments")
        state = "SELECT account, payments, cents FROM SCHEMA.state_of_keep_balance"
        found, kept = rows_of(table), rows_of(state)
        self.wrong += [
            f"account {account}: {found.get(account)} in the table, {kept.get(account)} in the "
            f"state, in place of {wanted}"
            for account, wanted in expected.items()
            if not found.get(account) == kept.get(account) == wanted
        ]


def minute_of(moment: datetime) -> int:
    return int((moment - START).total_seconds()) // 60


def full_minutes(numbers: range) -> set[int]:
    """The minutes of which all payments are among some numbers."""
    return set(range(-(-numbers.start // 60), numbers.stop // 60))


def sums_of(numbers: Counter[int]) -> dict[int, tuple[int, int]]:
    """Number and sum of some payments, by account."""
    found: dict[int, tuple[int, int]] = {}
    for number, count in numbers.items():
        one = payment(number)
        payments, cents = found.get(one.account, (0, 0))
        found[one.account] = payments + count, cents + count * one.cents
    return found


async def run(directory: Path, *, kills: int, seed: int, say: Callable[[str], None]) -> list[str]:
    """Run queries until all kills are done; returns the differences."""
    choice = random.Random(seed)
    workers = await asyncio.to_thread(Workers, directory, NAME, TARGET)
    try:
        workers.start()
        workers.start()
        while not workers.query("SELECT FROM SCHEMA.inbox"):  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.1)
        bank = LiveBank(workers, choice)
        bank.kills_left = kills
        writing = asyncio.create_task(bank.write())
        for round_ in itertools.count(1):
            await bank.live(f"life_{round_}")
            say(
                f"{bank.sent} payments, {bank.kills_left} kills left: {len(bank.wrong)} differences"
            )
            if not bank.kills_left or bank.wrong:
                break
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        ended = [one.returncode for one in workers.running if one.poll() is not None]
        if ended:
            bank.wrong.append(f"workers ended by themselves: {ended}")
        if bank.wrong or workers.errors:
            bank.wrong.append(workers.tail())
    except MillwheelError as error:
        return [str(error), workers.tail()]
    else:
        return [*workers.errors, *bank.wrong]
    finally:
        await asyncio.to_thread(workers.end)


def main() -> int:
    """Run it, with a store of its own."""
    parser = argparse.ArgumentParser(description="Queries of workers under faults.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="millwheel-live-"))
    directory.chmod(0o755)
    try:
        wrong = asyncio.run(run(directory, kills=given.kills, seed=given.seed, say=print))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
