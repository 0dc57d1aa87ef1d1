"""Pipelines for measured worker processes, configured by environment variables."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from bench import hot, workload
from bench.endless import Endless
from millwheel import (
    Computation,
    Context,
    JsonLines,
    Pipeline,
    Record,
    Settings,
    Stream,
    Table,
    Timer,
)

NAME = os.environ.get("BENCH_NAME", "bench_shared")
FILES = Path(os.environ.get("BENCH_FILES", "."))
RATE = float(os.environ.get("BENCH_RATE", "200"))
SETTINGS = replace(
    Settings(),
    lease_seconds=float(os.environ.get("BENCH_LEASE", "15")),
    placement_seconds=0.2,
    placement_cooldown_seconds=1.0,  # placement settles before the measurement starts
)
PARTS = 4
TICKS = 8
"""Number of tick sources; each is a key, and so is on one worker."""


class Start(msgspec.Struct):
    """A row that starts a source of ticks."""

    at: datetime
    source: int


class Tick(msgspec.Struct):
    """A record with its creation time."""

    number: int
    made: float


class Ticks(msgspec.Struct):
    """State of a source: the number of ticks produced."""

    made: int = 0


class Seen(msgspec.Struct):
    """State of a key that receives ticks, of configurable size."""

    last: int = 0
    text: str = ""


class Latency(msgspec.Struct, frozen=True):
    """A row of `latency`: time from a tick's creation to its processing by another computation."""

    number: int
    milliseconds: float


STARTS, TICKED = Stream("starts", Start), Stream("ticks", Tick)
LATENCIES = Stream("latencies", Latency)
KEYS = int(os.environ.get("BENCH_KEYS", "10000"))


class MakeTicks(Computation[Start, Ticks]):
    """Produces its share of `RATE` records per second, by wall-clock timers."""

    writes = (TICKED,)

    async def process_record(self, record: Record[Start], ctx: Context[Ticks]) -> None:
        self._again(ctx)

    async def process_timer(self, timer: Timer, ctx: Context[Ticks]) -> None:
        ctx.state.made += 1
        number = ctx.state.made * TICKS + int(str(ctx.key))
        ctx.produce(TICKED, Tick(number, time.time()))
        self._again(ctx)

    def _again(self, ctx: Context[Ticks]) -> None:
        ctx.set_timer(ctx.now + timedelta(seconds=TICKS / RATE), kind="wall")


class Measure(Computation[Tick, Seen]):
    """Records the age of each tick at its processing."""

    writes = (LATENCIES,)

    async def process_record(self, record: Record[Tick], ctx: Context[Seen]) -> None:
        ctx.state.last = record.value.number
        age = time.time() - record.value.made
        ctx.produce(LATENCIES, Latency(record.value.number, age * 1000))


def key_of(tick: Tick) -> str:
    """Return one of `KEYS` keys, spread over the slots."""
    return f"key {tick.number * 7919 % KEYS}"


def ticking() -> Pipeline:
    """Build a steady load with the latency of each record."""
    pipeline = Pipeline(NAME, settings=SETTINGS)
    pipeline.inject(STARTS, JsonLines(FILES / "starts.jsonl"), timestamp=lambda start: start.at)
    pipeline.add(MakeTicks(), STARTS.by(lambda start: str(start.source)))
    pipeline.add(Measure(), TICKED.by(key_of))
    pipeline.sink(LATENCIES, Table("latency", Latency))
    return pipeline


def write_starts(directory: Path) -> None:
    """Write the rows that start the sources of ticks."""
    begin = datetime(2024, 1, 1, tzinfo=UTC)
    rows = [msgspec.json.encode(Start(begin, number)) for number in range(TICKS)]
    (directory / "starts.jsonl").write_bytes(b"\n".join(rows) + b"\n")


def _payments() -> JsonLines:
    return JsonLines([FILES / f"payments-{part}.jsonl" for part in range(PARTS)])


def write_payments(directory: Path, count: int) -> None:
    """Write the payments of the workload, one file per partition."""
    encode = msgspec.json.Encoder().encode
    rows: list[list[bytes]] = [[] for _ in range(PARTS)]
    for number, payment in enumerate(workload.payments(count)):
        rows[number % PARTS].append(encode(payment) + b"\n")
    for part, lines in enumerate(rows):
        (directory / f"payments-{part}.jsonl").write_bytes(b"".join(lines))


def balances() -> Pipeline:
    """Build the workload of `bench.rate`, from several partitions."""
    return workload.pipeline(NAME, _payments(), SETTINGS)


class Noted(msgspec.Struct):
    """A balance with one more column."""

    account: int
    payments: int
    total: int
    note: str | None = None


class KeepAgain(workload.KeepBalance):
    """The same balances, with a hundred times the total in its state."""

    version = 2
    migrations = MappingProxyType({1: lambda old: {**old, "total": old.get("total", 0) * 100}})


def evolved() -> Pipeline:
    """Build the endless workload, in the version that `BENCH_VERSION` says; see
    `bench.evolving`."""
    version = os.environ.get("BENCH_VERSION", "1")
    pipeline = Pipeline(NAME, settings=SETTINGS)
    pipeline.inject(workload.PAYMENTS, Endless(), timestamp=lambda payment: payment.at)
    keep = KeepAgain() if version == "2" else workload.KeepBalance()
    pipeline.add(keep, workload.PAYMENTS.by(lambda payment: payment.account), name="keep_balance")
    if version == "column":
        table: Table[Any] = Table("balances", Noted, key=("account",), producer_key=("account",))
        pipeline.sink(
            workload.BALANCES, table, row=lambda b: Noted(b.account, b.payments, b.total, "new")
        )
    else:
        table = Table("balances", workload.Balance, key=("account",), producer_key=("account",))
        pipeline.sink(workload.BALANCES, table)
    return pipeline


def plain() -> Pipeline:
    """Build the hot-key workload with one phase."""
    pipeline = hot.plain(NAME, _payments())
    pipeline.settings = SETTINGS
    return pipeline


def two_phase() -> Pipeline:
    """Build the hot-key workload with two phases."""
    pipeline = hot.two_phase(NAME, _payments())
    pipeline.settings = SETTINGS
    return pipeline


def topics() -> Pipeline:
    """Build the workload of `bench.rate` from topic to topic; `BENCH_KAFKA` has the broker's
    address and both topics."""
    from millwheel.kafka import Kafka, KafkaCluster, KafkaSink

    address, payments, balances = os.environ["BENCH_KAFKA"].split()
    cluster = KafkaCluster(address)
    pipeline = Pipeline(NAME, settings=SETTINGS)
    pipeline.inject(
        workload.PAYMENTS,
        Kafka(cluster, payments),
        timestamp=lambda payment: payment.at,
        lateness=timedelta(seconds=10),
    )
    pipeline.add(workload.KeepBalance(), workload.PAYMENTS.by(lambda payment: payment.account))
    pipeline.sink(workload.BALANCES, KafkaSink(cluster, balances, key=lambda found: found.account))
    return pipeline
