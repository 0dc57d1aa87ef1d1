"""The workload: one strong, stateful computation with dedup and one production per record."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from millwheel import Computation, Context, Discard, JsonLines, Pipeline, Record, Settings, Stream
from millwheel.sources import Source

KEYS = 10_000
START = datetime(2024, 1, 1, tzinfo=UTC)


class Payment(msgspec.Struct):
    """An input record."""

    at: datetime
    account: int
    amount: int


class Balance(msgspec.Struct):
    """An output record, one per payment."""

    account: int
    payments: int
    total: int


class Account(msgspec.Struct):
    """The state of a key."""

    payments: int = 0
    total: int = 0


PAYMENTS = Stream("payments", Payment)
BALANCES = Stream("balances", Balance)


class KeepBalance(Computation[Payment, Account]):
    """Adds up payments, and produces the new balance."""

    writes = (BALANCES,)

    async def process_record(self, record: Record[Payment], ctx: Context[Account]) -> None:
        account = ctx.state
        account.payments += 1
        account.total += record.value.amount
        ctx.produce(BALANCES, Balance(record.value.account, account.payments, account.total))


class Follow(Computation[Balance, Account]):
    """A further stage of the same kind: keeps the newest balance, and forwards it."""

    def __init__(self, to: Stream[Balance]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Balance], ctx: Context[Account]) -> None:
        account, balance = ctx.state, record.value
        account.payments += 1
        account.total = balance.total
        ctx.produce(self._to, Balance(balance.account, account.payments, account.total))


def pipeline(
    name: str, source: Source, settings: Settings | None = None, *, stages: int = 1
) -> Pipeline:
    """Build the workload over a source, followed by `stages` - 1 computations of the same kind."""
    built = Pipeline(name, settings=settings)
    built.inject(
        PAYMENTS, source, timestamp=lambda payment: payment.at, lateness=timedelta(seconds=10)
    )
    built.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account))
    last = BALANCES
    for number in range(1, stages):
        last, before = Stream(f"balances_{number}", Balance), last
        built.add(Follow(last), before.by(lambda balance: balance.account), name=f"follow_{number}")
    built.sink(last, Discard())
    return built


def payments(count: int, seed: int = 1) -> Iterator[Payment]:
    """Generate payments a millisecond apart, over `KEYS` accounts."""
    draw = random.Random(seed)
    for number in range(count):
        at = START + timedelta(milliseconds=number)
        yield Payment(at, draw.randrange(KEYS), draw.randrange(1, 1000))


def payments_file(directory: Path, count: int) -> JsonLines:
    """Return the payments as a source."""
    return JsonLines(lines_file(directory, count))


def lines_file(directory: Path, count: int) -> Path:
    """Return the path of the payments as JSON Lines; the file is written once."""
    path = directory / f"payments-{count}.jsonl"
    if not path.exists():
        encode = msgspec.json.Encoder().encode
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            file.writelines(encode(payment) + b"\n" for payment in payments(count))
        part.rename(path)
    return path
