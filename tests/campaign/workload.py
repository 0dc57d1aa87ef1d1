"""What the workers do, and what must come of it by arithmetic alone.

Deposits are made when they are read: row `o` of a partition is deposit number ``o // KEYS`` of one
of its `KEYS` accounts, so a crash changes nothing, and what must come of the first so many rows is
a formula::

    deposits ─[pass]─> accounts ──┬─> branches          every deposit, by another key
                                  ├─> ledger            upserted each TENTH deposit
                                  └─> receipt           one more row each TWENTY_FIFTH

``accounts`` keeps count, sum and sum of squares of the numbers of an account; both tables are
written in its commit. ``pass`` is there if what is promised is weak, and goes by a key of its own.
How many rows there are stands in a file: at first so many that nobody comes to the end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table
from millwheel.sources import Lag, Partition, Row

NAME = "campaign"
VARIABLE = "CAMPAIGN_WORK"
PARTITIONS = 4
KEYS = 500
"""Accounts of one partition; of them all the reader looks at each, several times a second."""
STRIDE = 7919
"""A prime: the accounts of a partition come in steps of it."""
BRANCHES = 256
TENTH, TWENTY_FIFTH = 10, 25
ENDLESS = 1 << 40
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
LOOK_ROWS = 1024
"""Rows between two looks at how many there are to be."""

GUARANTEES: dict[str, dict[str, Any] | None] = {
    "strong": None,
    "weak": {"productions": "weak"},
    "tree": {"productions": "weak", "acknowledgement": "tree"},
}
"""Switches of ``pass``; None: it is left out."""


class Work(msgspec.Struct, frozen=True):
    """What is to be done, as the environment has it."""

    directory: str
    """Where the number of rows stands."""
    guarantee: str = "strong"
    tables: bool = True
    """Whether rows of the user's belong to the commits."""
    lease_seconds: float = 2.0
    bucket_seconds: float = 15.0
    unacked: int = 4000

    @property
    def rows_file(self) -> Path:
        """How many rows each partition has."""
        return Path(self.directory) / "rows"


class Deposit(msgspec.Struct, frozen=True):
    """What comes in."""

    account: int
    number: int


class Account(msgspec.Struct):
    """The state of an account."""

    count: int = 0
    total: int = 0
    squares: int = 0
    astray: int = 0
    """Deposits that came out of their order; where the order is promised there are none."""


class Branch(msgspec.Struct):
    """The state of a branch."""

    count: int = 0
    total: int = 0


class Standing(msgspec.Struct, frozen=True):
    """A row of `ledger`."""

    account: int
    count: int
    total: int


class Receipt(msgspec.Struct, frozen=True):
    """A row of `receipt`."""

    account: int
    number: int


DEPOSITS, PASSED = Stream("deposits", Deposit), Stream("passed", Deposit)
ENTRIES = Stream("entries", Deposit)
STANDINGS, RECEIPTS = Stream("standings", Standing), Stream("receipts", Receipt)


class PassOn(Computation[Deposit, None]):
    """Passes on."""

    writes = (PASSED,)

    async def process_record(self, record: Record[Deposit], ctx: Context[None]) -> None:
        ctx.produce(PASSED, record.value)


class Accounts(Computation[Deposit, Account]):
    """Adds up the deposits of an account."""

    def __init__(self, tables: bool) -> None:
        self.writes = (ENTRIES, STANDINGS, RECEIPTS) if tables else (ENTRIES,)
        self._tables = tables

    async def process_record(self, record: Record[Deposit], ctx: Context[Account]) -> None:
        state, deposit = ctx.state, record.value
        if deposit.number != state.count:
            state.astray += 1
        state.count += 1
        state.total += deposit.number
        state.squares += deposit.number * deposit.number
        ctx.produce(ENTRIES, deposit)
        if self._tables and state.count % TENTH == 0:
            ctx.produce(STANDINGS, Standing(deposit.account, state.count, state.total))
        if self._tables and state.count % TWENTY_FIFTH == 0:
            ctx.produce(RECEIPTS, Receipt(deposit.account, state.count // TWENTY_FIFTH))


class Branches(Computation[Deposit, Branch]):
    """Adds up the deposits of a branch."""

    async def process_record(self, record: Record[Deposit], ctx: Context[Branch]) -> None:
        ctx.state.count += 1
        ctx.state.total += record.value.number


def account_of(partition: int, offset: int) -> int:
    """Whose deposit a row is."""
    return partition * KEYS + offset * STRIDE % KEYS


def branch_of(deposit: Deposit) -> int:
    """Where it is made: somewhere else each time."""
    return (deposit.account + deposit.number) % BRANCHES


def deposits_of(account: int, rows: int) -> int:
    """How many of the first rows of its partition are an account's."""
    rounds, rest = divmod(rows, KEYS)
    return rounds + (_place()[account % KEYS] < rest)


@cache
def _place() -> tuple[int, ...]:
    """When an account of a partition comes in each round."""
    places = [0] * KEYS
    for place in range(KEYS):
        places[place * STRIDE % KEYS] = place
    return tuple(places)


# -- the source ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """Deposits, made when they are read."""

    work: Work

    @property
    def bounded(self) -> bool:
        """The file says how many rows there are."""
        return True

    def partitions(self) -> list[Partition]:
        """Each with its accounts."""
        return [Part(self.work, index) for index in range(PARTITIONS)]

    def describe(self) -> dict[str, Any]:
        """What is stored of it in the graph."""
        return {"deposits": PARTITIONS, "accounts": KEYS}


@dataclass(frozen=True)
class Part:
    """A partition."""

    work: Work
    index: int

    @property
    def identity(self) -> str:
        """Its number."""
        return f"deposits {self.index}"

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> Reader:
        """Start at a stored row."""
        return Reader(self.work, self.index, 0 if position is None else int(position["row"]))


class Reader:
    """Makes the rows of one partition."""

    def __init__(self, work: Work, index: int, row: int) -> None:
        self._work = work
        self._index = index
        self._next = row
        self._rows = 0
        self._look = row
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether all rows were read."""
        return self._ended

    async def read(self, limit: int) -> list[Row]:
        """Up to `limit` further rows; an empty list at the end."""
        if self._next >= self._look or self._next + limit > self._rows:
            self._rows = rows_of(self._work)
            self._look = self._next + LOOK_ROWS
        first = self._next
        self._next = max(first, min(first + limit, self._rows))
        self._ended = self._next == first
        base = self._index * KEYS
        return [
            Row(o, o + 1, Deposit(base + o * STRIDE % KEYS, o // KEYS))
            for o in range(first, self._next)
        ]

    async def wait(self) -> None:
        """Return at once: rows are made when they are read."""

    def position(self, acknowledged: int) -> dict[str, Any]:
        """The first row not acknowledged."""
        return {"row": acknowledged}

    def progress(self) -> float:
        """The share of the rows that the file tells of."""
        return min(1.0, self._next / max(self._rows, 1))

    @property
    def caught_up(self) -> bool:
        """Whether all rows were read."""
        return self._next >= self._rows

    def lag(self) -> Lag:
        """How many rows were not read yet."""
        return Lag(rows=max(0, self._rows - self._next))

    def close(self) -> None:
        """Nothing is open."""


def rows_of(work: Work) -> int:
    """How many rows each partition has, as far as is known now."""
    return int(work.rows_file.read_text())


def set_rows(work: Work, rows: int) -> None:
    """Say how many rows each partition has; nobody may have read more."""
    beside = work.rows_file.with_suffix(".new")
    beside.write_text(str(rows))
    beside.rename(work.rows_file)


# -- the pipeline --------------------------------------------------------------------------


def build(work: Work, settings: Settings | None = None) -> Pipeline:
    """The pipeline of some work."""
    made = Pipeline(NAME, settings=settings)
    made.inject(DEPOSITS, Made(work), timestamp=_time_of)
    deposits = DEPOSITS
    switches = GUARANTEES[work.guarantee]
    if switches is not None:
        made.add(PassOn(), DEPOSITS.by(branch_of), name="pass", **switches)
        deposits = PASSED
    made.add(Accounts(work.tables), deposits.by(lambda deposit: deposit.account), name="accounts")
    made.add(Branches(), ENTRIES.by(branch_of), name="branches")
    if work.tables:
        made.sink(STANDINGS, Table("ledger", Standing, key=("account",), producer_key=("account",)))
        made.sink(RECEIPTS, Table("receipt", Receipt))
    return made


def pipeline() -> Pipeline:
    """As the environment says."""
    work = msgspec.json.decode(os.environ[VARIABLE], type=Work)
    settings = replace(
        Settings(),
        lease_seconds=work.lease_seconds,
        bucket_seconds=work.bucket_seconds,
        bundle_records=1000,
        max_unacked_records=work.unacked,
        source_bucket_rows=20_000,
        placement_seconds=0.25,
        placement_cooldown_seconds=5.0,
        fold_seconds=1.0,
    )
    return build(work, settings)


def _time_of(deposit: Deposit) -> datetime:
    return BEGIN + timedelta(seconds=deposit.number)
