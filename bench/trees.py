"""Chain and tree acknowledgement: memory and acknowledgement traffic per record in flight.

One record becomes `fan_out` records in the first of `depth` weak computations, and the other
computations forward each of these under another key. Nothing is timed: it runs in memory, on a
virtual clock, and gives the same figures on any machine.

*Memory*: the leaf waits, so that all roots are in flight; then the memory kept for them is added up
by `sys.getsizeof`: deliveries with their values, tables, numbers. The roots' own records, which
both variants keep, are excluded. *Traffic*: within one process, the numbers reported (runs of a
log's numbers, or trees); between three workers the same, with the frames and bytes on the wire.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Literal
from uuid import UUID

import msgspec

from millwheel import Computation, Context, Discard, Pipeline, Record, Settings, Stream
from millwheel.core.clock import VirtualClock
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.modes.weak import Weak
from millwheel.runtime.network.frames import (
    Acknowledge,
    Deliver,
    DeliverChunk,
    Loose,
    RootReport,
    decode,
)
from millwheel.runtime.network.handshake import Identity
from millwheel.runtime.network.links import Links
from millwheel.runtime.process.load import Process
from millwheel.store.memory import MemoryStore
from millwheel.testing import inject
from millwheel.testing.fake_network import FAIR, SECRET, FakeNetwork, Fate
from millwheel.testing.script import Script
from millwheel.timers.holds import Holds

Acknowledgement = Literal["chain", "tree"]

START = datetime(2024, 1, 1, tzinfo=UTC)
DEPTHS = range(1, 9)
FAN_OUTS = (1, 10, 100)
ROOTS = 20
WORKERS = 3
TICK_SECONDS = 0.001
TURNS = 200_000
"""Turns of the event loop after which the run counts as stuck."""

LONG = timedelta(hours=1)
"""Timeout of stragglers and replays, so that only the traffic without failures is counted."""

LIMITS = Settings(
    max_unacked_records=100_000, max_unacked_bytes=1 << 30, waiting_keys=1_000_000, intervals=1
)
FREE_OF_CHARGE = Process(cpu_seconds=lambda: 0.0, run_seconds=lambda: 0.0)


class Order(msgspec.Struct, frozen=True):
    """A record."""

    number: int
    item: int = 0
    text: str = "forty characters, more or less, of text."


ORDERS = Stream("orders", Order)
DONE = Stream("done", Order)


class Unfold(Computation[Order, None]):
    """Produces `fan_out` records per record."""

    def __init__(self, to: Stream[Order], fan_out: int) -> None:
        self.writes = (to,)
        self._to = to
        self._fan_out = fan_out

    async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
        for item in range(self._fan_out):
            ctx.produce(self._to, Order(record.value.number, item))


class Pass(Computation[Order, None]):
    """Forwards each record."""

    def __init__(self, to: Stream[Order]) -> None:
        self.writes = (to,)
        self._to = to

    async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
        ctx.produce(self._to, record.value)


class Leaf(Computation[Order, None]):
    """Waits for the gate, then forwards each record."""

    writes = (DONE,)

    def __init__(self, gate: asyncio.Event) -> None:
        self._gate = gate

    async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
        await self._gate.wait()
        ctx.produce(DONE, record.value)


def by_hop(hop: int) -> Callable[[Order], int]:
    """Return a key function that differs per step, so that records move to other intervals."""

    def key(order: Order) -> int:
        return (order.number * 1009 + order.item) * 31 + hop

    return key


def pipeline(
    how: Acknowledgement, depth: int, fan_out: int, roots: int, gate: asyncio.Event
) -> Pipeline:
    """Build `depth` weak computations and a leaf."""
    made = Pipeline("trees", settings=LIMITS)
    source = Script("orders", [inject(ORDERS, Order(number)) for number in range(roots)])
    made.inject(ORDERS, source, timestamp=lambda order: START + timedelta(seconds=order.number))
    last = ORDERS
    for hop in range(depth):
        to = Stream(f"hop_{hop}", Order)
        made.add(
            Pass(to) if hop else Unfold(to, fan_out),
            last.by(by_hop(hop)),
            name=f"hop_{hop}",
            productions="weak",
            acknowledgement=how,
            straggler_after=LONG,
            replay_after=LONG,
        )
        last = to
    made.add(Leaf(gate), last.by(by_hop(depth)))
    made.sink(DONE, Discard())
    return made


class Site:
    """Engines in one event loop, on one in-memory store."""

    def __init__(self, made: Pipeline) -> None:
        self.pipeline = made
        self.clock = VirtualClock()
        self.store = MemoryStore(made.name, clock=self.clock)
        self.network = FakeNetwork(self.clock)
        self.engines: list[Engine] = []

    async def start(self, workers: int) -> None:
        """Start N workers, each with its share; a single one needs no network."""
        for number in range(workers):
            name = f"w{number}"
            worker = str(UUID(int=Random(number).getrandbits(128)))

            def network(worker: str, name: str = name, number: int = number) -> Links:
                identity = Identity(self.pipeline.name, worker, SECRET)
                medium = self.network.medium(name)
                return Links(identity, medium, clock=self.clock, random=Random(number))

            engine = Engine(
                self.pipeline,
                self.store,
                clock=self.clock,
                worker=worker,
                process=FREE_OF_CHARGE,
                network=network if workers > 1 else None,
                options=Options(keep_open=True),
            )
            await engine.start()
            self.engines.append(engine)
            if workers > 1:
                engine.attend(Engine.claiming, "claiming")

    async def until(self, condition: Callable[[], object]) -> None:
        """Advance time until a condition holds."""
        for _ in range(TURNS):
            if condition():
                return
            for engine in self.engines:
                if engine.failure is not None:
                    raise engine.failure
            await asyncio.sleep(0)
            self.clock.advance(TICK_SECONDS)
        raise AssertionError(f"stuck: {[engine.progress() for engine in self.engines]}")

    async def stop(self) -> None:
        for engine in self.engines:
            await engine.kill()

    def leaves(self) -> int:
        """Return the number of records queued or running at the leaf, over all workers."""
        return sum(
            len(interval.intake) + len(interval.dedup.in_flight)
            for engine in self.engines
            for interval in engine.intervals
            if interval.step.name == "leaf"
        )


# -- memory ------------------------------------------------------------------------------------


def parts(value: Any) -> Iterator[Any]:
    """Yield the objects that an object refers to, as far as they are data."""
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    elif isinstance(value, (list, tuple, set, deque)):
        yield from value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield getattr(value, name)
    elif isinstance(value, Holds) or type(value).__name__ in ("Root", "WaitingInput", "SentLog"):
        for name in getattr(type(value), "__slots__", None) or vars(value):
            yield getattr(value, name)


def size_of(things: Iterable[Any], left_out: set[int]) -> int:
    """Return the bytes of objects and all they refer to, each counted once."""
    seen = set(left_out)
    todo = list(things)
    total = 0
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (Interval, type)):
            continue
        seen.add(id(thing))
        # A dict keeps its largest size; a copy has the size it needs now.
        total += sys.getsizeof(thing.copy() if isinstance(thing, dict) else thing)
        todo += parts(thing)
    return total


def kept(engine: Engine) -> int:
    """Return the bytes that a worker keeps for records in flight."""
    things: list[Any] = [engine.modes.trees.roots._roots]
    own: set[int] = set()
    for interval in engine.intervals:
        if not isinstance(interval.mode, Weak):
            continue
        chain = interval.mode.chain
        things += [chain._pending, chain._by_seq, chain._watched, interval.log]
        things += [interval.dedup.in_flight, interval.dedup._derived]
        if interval.step.name == "hop_0":
            for delivery in interval.dedup.in_flight.values():
                own.update((id(delivery), *map(id, parts(delivery))))
    return size_of(things, own)


async def memory(how: Acknowledgement, depth: int, fan_out: int) -> float:
    """Measure the bytes kept per root in flight, without its own record."""
    found = []
    for roots in (0, ROOTS):
        gate = asyncio.Event()
        site = Site(pipeline(how, depth, fan_out, roots, gate))
        await site.start(1)
        await site.until(lambda site=site, roots=roots: site.leaves() == roots * fan_out)  # type: ignore[misc]
        for _ in itertools.repeat(None, 20):
            await asyncio.sleep(0)
        found.append(kept(site.engines[0]))
        await site.stop()
    return (found[1] - found[0]) / ROOTS


# -- traffic -----------------------------------------------------------------------------------


def runs(numbers: Iterable[int]) -> int:
    """Count the runs of consecutive numbers."""
    ordered = sorted(numbers)
    return sum(number != before + 1 for before, number in itertools.pairwise([-2, *ordered]))


def count_reports(engine: Engine, counted: Counter[str]) -> None:
    """Count the acknowledgements within a worker."""
    arrived, receive = engine.exchange._arrived, engine.modes.trees.receive_reports

    def count_arrived(sent: Any, owner: Interval, receiver: int, seqs: Sequence[int]) -> None:
        if isinstance(owner.mode, Weak):
            counted["calls"] += 1
            counted["entries"] += runs(seqs)
        arrived(sent, owner, receiver, seqs)

    def count_reports(reports: Iterable[tuple[int, int]]) -> None:
        known = [report for report in reports if report[1]]
        counted["calls"] += bool(known)
        counted["entries"] += len(known)
        receive(known)

    engine.exchange._arrived = count_arrived  # type: ignore[method-assign]
    engine.modes.trees.receive_reports = count_reports  # type: ignore[method-assign]


async def traffic(
    how: Acknowledgement, depth: int, fan_out: int, workers: int, *, apart: bool = False
) -> Counter[str]:
    """Count the acknowledgements: within one process, or on the wire between several.

    Args:
        apart: inject one root after the other; otherwise all at once.
    """
    gate = asyncio.Event()
    gate.set()
    roots = ROOTS
    site = Site(pipeline(how, depth, fan_out, roots if workers == 1 else 0, gate))
    counted: Counter[str] = Counter()
    if workers == 1:
        await site.start(1)
        count_reports(site.engines[0], counted)
        await site.until(site.engines[0].done.is_set)
    else:
        await spread(site, workers)
        logs = {
            log.id
            for engine in site.engines
            for interval in engine.intervals
            if isinstance(interval.mode, Weak)
            for log in interval.logs
        }

        def count(sender: str, receiver: str, body: bytes) -> Fate:
            frame = decode(body)
            if isinstance(frame, Acknowledge) and frame.log in logs:
                counted["frames"] += 1
                counted["entries"] += len(frame.seqs)
                counted["bytes"] += len(body)
            elif isinstance(frame, RootReport):
                counted["frames"] += 1
                counted["entries"] += len(frame.reports)
                counted["bytes"] += len(body)
            elif isinstance(frame, Loose) or (isinstance(frame, Deliver) and frame.log in logs):
                counted["records"] += len(frame.records)
            elif isinstance(frame, DeliverChunk) and frame.log in logs:
                counted["records"] += len(frame.chunk.numbers)
            return FAIR

        site.network.weather = count
        for number in range(roots):
            feed(site, number)
            if apart:
                await site.until(lambda number=number: done(site) == (number + 1) * fan_out)  # type: ignore[misc]
        await site.until(lambda: done(site) == roots * fan_out)
        for _ in itertools.repeat(None, 2000):  # let the last acknowledgements arrive
            await asyncio.sleep(0)
            site.clock.advance(TICK_SECONDS)
    await site.stop()
    return counted


async def spread(site: Site, workers: int) -> None:
    """Start workers, and wait until each has its share of the intervals."""
    await site.start(workers)
    still = 0
    shares: list[int] = []
    while still < 3000:
        await asyncio.sleep(0)
        site.clock.advance(TICK_SECONDS)
        now = [len(engine.intervals) for engine in site.engines]
        still = still + 1 if now == shares and all(now) else 0
        shares = now


def feed(site: Site, number: int) -> None:
    """Append a row to the source."""
    (injection,) = [node.injection for node in site.pipeline.nodes.values() if node.injection]
    source = injection.source
    assert isinstance(source, Script)
    source.append(inject(ORDERS, Order(number)))


def done(site: Site) -> int:
    """Return the number of records processed by the leaf."""
    return sum(
        interval.counters.totals.get("processed", 0)
        for engine in site.engines
        for interval in engine.intervals
        if interval.step.name == "leaf"
    )


async def compare(depth: int, fan_out: int) -> dict[str, Any]:
    """Measure both variants for one line of the table."""
    line: dict[str, Any] = {"depth": depth, "fan_out": fan_out}
    ways: tuple[Acknowledgement, ...] = ("chain", "tree")
    for how in ways:
        here = await traffic(how, depth, fan_out, 1)
        burst = await traffic(how, depth, fan_out, WORKERS)
        apart = await traffic(how, depth, fan_out, WORKERS, apart=True)
        line[how] = {
            "bytes_per_root": await memory(how, depth, fan_out),
            "told_per_root": here["entries"] / ROOTS,
            "burst": {name: number / ROOTS for name, number in burst.items()},
            "apart": {name: number / ROOTS for name, number in apart.items()},
        }
    return line


async def measure(url: str, directory: Path, *, quick: bool) -> list[dict[str, Any]]:
    """Measure every depth and fan-out for chain and tree; neither server nor directory is used."""
    print(
        "chain / tree, per root: depth, fan-out | bytes kept | entries in one process | "
        f"acknowledgements between {WORKERS} workers, as entries, frames, bytes: "
        f"{ROOTS} roots at once | one after the other"
    )
    lines = []
    for depth in (1, 4) if quick else DEPTHS:
        for fan_out in FAN_OUTS:
            line = await compare(depth, fan_out)
            lines.append(line)
            chain, tree = line["chain"], line["tree"]
            text = " | ".join(
                ", ".join(
                    " / ".join(f"{side[manner].get(name, 0):,.1f}" for side in (chain, tree))
                    for name in ("entries", "frames", "bytes")
                )
                for manner in ("burst", "apart")
            )
            print(
                f"  {depth} {fan_out:4} | {chain['bytes_per_root']:9,.0f} / "
                f"{tree['bytes_per_root']:5,.0f} | {chain['told_per_root']:7,.1f} / "
                f"{tree['told_per_root']:5,.1f} | {text}"
            )
    return lines
