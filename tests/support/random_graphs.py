"""Random pipelines on the store in memory: what they are made of, how they run, what they give.

A `Plan` is everything of one run as plain data: the graph, what its sources give and when, the
limits, and what goes wrong at which commit. Its text, as a failing test prints it, is Python
that makes it again: ``check_watermarks(Plan(...))`` runs the very same thing once more.

Nodes act by the names of the values alone, so that what they make of a value is known without
running them (`outcome`). What each of them met and did it tells in a journal, a table whose
rows are written in the commit of what they tell.
"""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any, Literal
from zlib import crc32

import msgspec
from hypothesis import strategies as st

from millwheel import Computation, Context, Pipeline, Record, Settings, Stream, Table, Timer
from millwheel.computations import Fold, Windowed
from millwheel.core.model import to_micros
from millwheel.errors import CommitUnknown, Fenced, StoreUnavailable
from millwheel.runtime.engine import Engine
from millwheel.sources import Partition
from millwheel.store.port.commit import Commit
from millwheel.testing import advance, inject
from millwheel.testing.script import Script, ScriptReader
from millwheel.windows import Pane, Session, Sliding, Tumbling
from tests.support.fault_plans import FAULTS
from tests.support.pipelines import QUICK
from tests.support.values import at
from tests.support.worlds import World, end_scripts, read_on

SECOND = timedelta(seconds=1)
TICK_SECONDS = 0.02
"""What one turn of the event loop takes, by the virtual clock."""
IDLE_SECONDS = 0.5
"""After so long without rows an idle source goes along with the others."""
STUCK_TURNS = 4_000
"""Turns of the event loop in which nothing becomes durable, after which a run counts as stuck."""
ENDLESS_TURNS = 10 * STUCK_TURNS
"""Turns after which it does so whatever it commits; a run that works has taken up to 4,038."""
SLOW_TURNS = 12
"""How long a slow commit is on the wire."""
MOST_WAITS = 20
"""Turns that user code gives way at the most."""
FAR = 10**6
"""A lateness in seconds with which no row moves the watermark, and none is late."""
MAX_SOURCES, MAX_NODES = 3, 6


# -- what flows -------------------------------------------------------------------------------


class Dot(msgspec.Struct, frozen=True):
    """A value; its name tells it from all others of its stream."""

    key: str
    name: str
    second: float
    on_time: bool
    """No step may see it late: its source had not promised otherwise when it came."""


class Event(msgspec.Struct):
    """A row of a journal: what a node met or did. Times in microseconds."""

    key: str
    what: str
    stream: str
    name: str
    moment: int
    watermark: int
    """The input watermark that user code saw."""
    count: int
    """How many events the key has had, by its state."""
    on_time: bool


class Closed(msgspec.Struct):
    """A pane as its table keeps it."""

    key: str
    start: datetime
    end: datetime
    names: str
    late: bool
    retracted: bool


SOURCES = [Stream(f"s{number}", Dot) for number in range(MAX_SOURCES)]
OUTPUTS = [Stream(f"n{number}", Dot) for number in range(MAX_NODES)]
PANES = [Stream(f"p{number}", Pane[list[str]]) for number in range(MAX_NODES)]
JOURNALS = [Stream(f"j{number}", Event) for number in range(MAX_NODES)]
OUTPUT_TABLES = [Table(f"out{number}", Dot) for number in range(MAX_NODES)]
PANE_TABLES = [Table(f"panes{number}", Closed) for number in range(MAX_NODES)]
JOURNAL_TABLES = [Table(f"journal{number}", Event) for number in range(MAX_NODES)]

names: Fold[Dot, list[str], list[str]] = Fold(
    list, lambda kept, dot: [*kept, dot.name], sorted, list[str], lambda a, b: a + b
)


def key_of(dot: Dot) -> str:
    return dot.key


def time_of(dot: Dot) -> datetime:
    return at(dot.second)


def pane_key(pane: Pane[list[str]]) -> str:
    return str(pane.key)


def closed(pane: Pane[list[str]]) -> Closed:
    return Closed(
        str(pane.key), pane.start, pane.end, " ".join(pane.value), pane.late, pane.retracted
    )


# -- the plan of a run ---------------------------------------------------------------------------

Kind = Literal[
    "pass", "filter", "split", "count", "echo", "hold", "timers", "tumbling", "sliding", "session"
]
WINDOWS: tuple[Kind, ...] = ("tumbling", "sliding", "session")


@dataclass(frozen=True)
class Node:
    """A step; it reads streams by number: first the sources', then the nodes'."""

    kind: Kind
    reads: tuple[int, ...]
    size: int = 3
    """Seconds of a window, a gap or a delay; how many a ``hold`` keeps."""
    slide: int = 1
    """Of a sliding window, in seconds; of a ``hold``: 1 keeps one hold a record, else one a key."""
    late: str = "drop"
    allowed: int | None = None
    waits: bool = False
    """Whether user code gives way in the middle."""


@dataclass(frozen=True)
class Source:
    """An injector: lateness in seconds, of so many partitions."""

    partitions: int = 1
    lateness: int = 0
    idle: bool = False


@dataclass(frozen=True)
class Row:
    """A partition, counted through all sources, gets a row; it is named by its place."""

    partition: int
    key: str
    second: int


@dataclass(frozen=True)
class Word:
    """A partition says how far in time it is; None: all of them."""

    partition: int | None
    second: int


@dataclass(frozen=True)
class Wait:
    """Nothing comes for so many turns of the event loop."""

    turns: int


@dataclass(frozen=True)
class Settle:
    """Nothing comes until everything is done."""


@dataclass(frozen=True)
class Restart:
    """The engine is stopped in order, and another one started."""


Step = Row | Word | Wait | Settle | Restart


@dataclass(frozen=True)
class Limits:
    """The settings that matter."""

    intervals: int = 1
    chunk: int = 100
    bundle: int = 1000
    unacked: int = 1000
    timers: int = 1000
    cache: int = 1 << 20
    fold: float = 2.0
    bucket: float = 120.0
    wire: int = 0
    """Turns that each commit is on the wire, besides those of the store."""

    def settings(self) -> Settings:
        return replace(
            QUICK,
            intervals=self.intervals,
            chunk_records=self.chunk,
            bundle_records=self.bundle,
            max_unacked_records=self.unacked,
            timers_in_memory=self.timers,
            cache_bytes=self.cache,
            fold_seconds=self.fold,
            bucket_seconds=self.bucket,
            housekeeping_seconds=0.1,
            filter_capacity=50,
        )


@dataclass(frozen=True)
class Plan:
    """One run."""

    sources: tuple[Source, ...]
    nodes: tuple[Node, ...]
    steps: tuple[Step, ...]
    limits: Limits = Limits()
    faults: tuple[tuple[int, str], ...] = ()
    """(number of the commit that is tried, what goes wrong with it)."""
    copies: int = 1

    def partitions(self) -> list[int]:
        """The source of each partition."""
        return [
            number for number, source in enumerate(self.sources) for _ in range(source.partitions)
        ]

    @property
    def punctual(self) -> bool:
        """Whether no row can be late."""
        return all(
            source.lateness == FAR and not source.idle for source in self.sources
        ) and not any(isinstance(step, Word) for step in self.steps)

    def stream(self, number: int) -> Stream[Dot]:
        """A stream by its number."""
        count = len(self.sources)
        return SOURCES[number] if number < count else OUTPUTS[number - count]

    def arrivals(self) -> list[list[Dot | int]]:
        """What each partition gives: values, and seconds that it promises.

        A row is on time if its partition had not promised anything beyond it, by its own
        lateness or in so many words. An idle one promises what others do, so nothing is said
        of its rows.
        """
        owners = self.partitions()
        found: list[list[Dot | int]] = [[] for _ in owners]
        promised = [float("-inf")] * len(owners)
        for step in self.steps:
            if isinstance(step, Word):
                said = range(len(owners)) if step.partition is None else [step.partition]
                for partition in said:
                    found[partition].append(step.second)
                    promised[partition] = max(promised[partition], step.second)
            elif isinstance(step, Row):
                partition = step.partition
                source = self.sources[owners[partition]]
                name = f"{'ABCDEF'[partition]}{len(found[partition])}"
                on_time = step.second >= promised[partition] and not source.idle
                found[partition].append(Dot(step.key, name, float(step.second), on_time))
                promised[partition] = max(promised[partition], step.second - source.lateness)
        return found

    def describe(self) -> str:
        """The graph as people draw it."""
        lines = []
        for number, source in enumerate(self.sources):
            lines.append(f"s{number}: {source}")
        for number, node in enumerate(self.nodes):
            reads = " + ".join(self.stream(stream).name for stream in node.reads)
            lines.append(f"{reads} -> n{number}: {node}")
        return "\n".join(lines)


# -- what nodes do ------------------------------------------------------------------------------


def hashed(*parts: object) -> int:
    """A number that looks drawn, and depends on the parts alone."""
    return crc32("/".join(map(str, parts)).encode())


def outcome(number: int, node: Node, dot: Dot) -> list[Dot]:
    """What a node of any kind but windows and timers makes of a value, sooner or later."""
    name, drawn = f"{dot.name}.{number}", hashed(number, dot.name)
    if node.kind == "filter":
        return [Dot(dot.key, name, dot.second, dot.on_time)] if drawn % 3 else []
    if node.kind == "split":
        return [
            Dot("abcde"[(drawn >> part) % 5], f"{name}{'xyz'[part]}",
                dot.second + (drawn >> part) % 3, dot.on_time)
            for part in range(drawn % 4)
        ]  # fmt: skip
    if node.kind == "echo":
        return [Dot(dot.key, name, dot.second + drawn % (4 * node.size), dot.on_time)]
    return [Dot(dot.key, name, dot.second, dot.on_time)]


def rings(number: int, dot: Dot) -> list[tuple[str, str, float]]:
    """What a node of timers does with a value: (set or cancel, tag, second)."""
    drawn, second = hashed(number, dot.name), dot.second
    tag, other = "xyz"[drawn % 3], "xyz"[drawn // 3 % 3]
    acts: list[list[tuple[str, str, float]]] = [
        [("set", tag, second + (drawn >> 8) % 20)],
        [("set", tag, second - 5)],
        [("cancel", tag, 0)],
        [("set", tag, second + 3), ("set", other, second + 1)],
        [("set", tag, second + 40)],
        [("cancel", other, 0), ("set", tag, second + 7), ("set", tag, second + 2)],
    ]
    return acts[drawn // 9 % 6]


def after(
    number: int, key: str, rang: int, tag: str, second: float
) -> list[tuple[str, str, float]]:
    """What a node of timers does when one has rung; every third sets none, so it comes to an
    end."""
    if rang % 3 == 0:
        return []
    drawn = hashed(number, key, rang)
    other = "xyz"[drawn // 4 % 3]
    acts: list[list[tuple[str, str, float]]] = [
        [("set", tag, second + 5)],
        [("set", other, second - 2)],
        [("cancel", other, 0)],
        [("set", tag, second)],
    ]
    return acts[drawn % 4]


def pane_dot(number: int, key: str, end: float, held: Sequence[str], *, on_time: bool) -> Dot:
    """A pane on its way on: named by what it holds."""
    return Dot(key, f"w{number}.{end:.6f}.{hashed(*held):x}", round(end - 1e-6, 6), on_time)


class Memory(msgspec.Struct):
    """What nodes keep of a key."""

    count: int = 0
    rang: int = 0
    held: list[Dot] = msgspec.field(default_factory=list)


class Telling:
    """Writes a journal; of a node that keeps nothing the count stays 0."""

    def __init__(self, number: int, node: Node) -> None:
        self.number = number
        self.node = node
        self.to = OUTPUTS[number]
        self.writes: tuple[Stream[Any], ...] = (self.to, JOURNALS[number])

    def tell(
        self, ctx: Context[Any], what: str, name: str, moment: datetime, *,
        stream: str = "", on_time: bool = False, count: int = 0,
    ) -> None:  # fmt: skip
        event = Event(
            str(ctx.key), what, stream, name, to_micros(moment), to_micros(ctx.low_watermark),
            count, on_time,
        )  # fmt: skip
        ctx.produce(JOURNALS[self.number], event)

    async def meet(self, record: Record[Dot], ctx: Context[Any], count: int) -> None:
        dot = record.value
        self.tell(
            ctx, "got", dot.name, record.timestamp,
            stream=record.stream, on_time=dot.on_time, count=count,
        )  # fmt: skip
        if self.node.waits:
            for _ in range(hashed(dot.name) % MOST_WAITS):
                await asyncio.sleep(0)

    def send(self, ctx: Context[Any], dots: Sequence[Dot], timestamp: datetime) -> None:
        """Send values with the timestamp `timestamp`, or their own if that is later."""
        for dot in dots:
            ctx.produce(self.to, dot, timestamp=max(timestamp, at(dot.second)))


class Through(Telling, Computation[Dot, None]):
    """Passes on, leaves out, multiplies."""

    async def process_record(self, record: Record[Dot], ctx: Context[None]) -> None:
        await self.meet(record, ctx, 0)
        self.send(ctx, outcome(self.number, self.node, record.value), record.timestamp)


class Keeping(Telling, Computation[Dot, Memory]):
    """Counts."""

    async def process_record(self, record: Record[Dot], ctx: Context[Memory]) -> None:
        await self.meet(record, ctx, self.next(ctx))
        await self.keep(record, ctx)

    def next(self, ctx: Context[Memory]) -> int:
        ctx.state.count += 1
        return ctx.state.count

    async def keep(self, record: Record[Dot], ctx: Context[Memory]) -> None:
        self.send(ctx, outcome(self.number, self.node, record.value), record.timestamp)

    def set_timer(self, ctx: Context[Memory], tag: str, second: float) -> None:
        ctx.set_timer(at(second), tag=tag)
        self.tell(ctx, "set", tag, at(second), count=self.next(ctx))

    def cancel_timer(self, ctx: Context[Memory], tag: str) -> None:
        ctx.cancel_timer(tag)
        self.tell(ctx, "cancel", tag, at(0), count=self.next(ctx))

    def rung(self, timer: Timer, ctx: Context[Memory]) -> None:
        self.tell(ctx, "rang", timer.tag, timer.at, count=self.next(ctx))


class Echo(Keeping):
    """Sends each value on when its time has come."""

    async def keep(self, record: Record[Dot], ctx: Context[Memory]) -> None:
        (echo,) = outcome(self.number, self.node, record.value)
        ctx.state.held.append(echo)
        self.set_timer(ctx, echo.name, echo.second)

    async def process_timer(self, timer: Timer, ctx: Context[Memory]) -> None:
        self.rung(timer, ctx)
        (echo,) = (dot for dot in ctx.state.held if dot.name == timer.tag)
        ctx.state.held.remove(echo)
        ctx.produce(self.to, echo)


class Hold(Keeping):
    """Keeps the last few values of a key and the watermark with them; nothing stays for long."""

    async def keep(self, record: Record[Dot], ctx: Context[Memory]) -> None:
        (dot,) = outcome(self.number, self.node, record.value)
        ctx.state.held.append(dot)
        if self.node.slide == 1:
            ctx.hold_watermark(at(dot.second), tag=dot.name)
        self.set_timer(ctx, dot.name, dot.second + 4 * self.node.size)
        if len(ctx.state.held) > self.node.size:
            first = ctx.state.held[0]
            self.cancel_timer(ctx, first.name)
            self.let_go(ctx, first)
        self.hold_all(ctx)

    async def process_timer(self, timer: Timer, ctx: Context[Memory]) -> None:
        self.rung(timer, ctx)
        (dot,) = (dot for dot in ctx.state.held if dot.name == timer.tag)
        self.let_go(ctx, dot)
        self.hold_all(ctx)

    def hold_all(self, ctx: Context[Memory]) -> None:
        if self.node.slide == 1:
            return
        if ctx.state.held:
            ctx.hold_watermark(at(min(dot.second for dot in ctx.state.held)))
        else:
            ctx.release_watermark()

    def let_go(self, ctx: Context[Memory], dot: Dot) -> None:
        ctx.state.held.remove(dot)
        if self.node.slide == 1:
            ctx.release_watermark(dot.name)
        # What was on time is so still: the engine refuses it if the hold did not work.
        moment = at(dot.second) if dot.on_time else max(at(dot.second), ctx.output_watermark)
        ctx.produce(self.to, dot, timestamp=moment)


class Timers(Keeping):
    """Sets, moves and cancels three timers of each key, from records and from timers."""

    async def keep(self, record: Record[Dot], ctx: Context[Memory]) -> None:
        self.do(ctx, rings(self.number, record.value))

    async def process_timer(self, timer: Timer, ctx: Context[Memory]) -> None:
        self.rung(timer, ctx)
        ctx.state.rang += 1
        rang, key = ctx.state.rang, str(ctx.key)
        second = (timer.at - at(0)) / SECOND
        ctx.produce(self.to, Dot(key, f"{self.number}{key}{rang}", second, False))
        self.do(ctx, after(self.number, key, rang, timer.tag, second))

    def do(self, ctx: Context[Memory], what: Sequence[tuple[str, str, float]]) -> None:
        for verb, tag, second in what:
            if verb == "set":
                self.set_timer(ctx, tag, second)
            else:
                self.cancel_timer(ctx, tag)


class Unpack(Telling, Computation[Pane[list[str]], Memory]):
    """Panes go on as values; a window may send the same pane twice, so those that are not its
    only one are numbered."""

    async def process_record(self, record: Record[Pane[list[str]]], ctx: Context[Memory]) -> None:
        ctx.state.count += 1
        count, key = ctx.state.count, str(ctx.key)
        pane = record.value
        end = (pane.end - at(0)) / SECOND
        only = not pane.late and not pane.retracted
        dot = pane_dot(self.number, key, end, pane.value, on_time=only)
        if not only:
            dot = Dot(key, f"{dot.name}.{key}{count}", dot.second, False)
        self.tell(
            ctx, "pane", dot.name, record.timestamp,
            stream=record.stream, on_time=only, count=count,
        )  # fmt: skip
        ctx.produce(self.to, dot)


def add_node(pipeline: Pipeline, plan: Plan, number: int) -> None:
    node = plan.nodes[number]
    inputs = [plan.stream(stream).by(key_of) for stream in node.reads]
    if node.kind in WINDOWS:
        size = node.size * SECOND
        windows: Any = Session(size)
        if node.kind == "tumbling":
            windows = Tumbling(size)
        elif node.kind == "sliding":
            windows = Sliding(size, node.slide * SECOND)
        allowed = None if node.allowed is None else node.allowed * SECOND
        late: Any = node.late
        windowed = Windowed(windows, names, to=PANES[number], late=late, allowed_lateness=allowed)
        pipeline.add(windowed, *inputs, name=f"w{number}")
        pipeline.sink(PANES[number], PANE_TABLES[number], row=closed)
        pipeline.add(Unpack(number, node), PANES[number].by(pane_key), name=f"n{number}")
    else:
        kinds: dict[str, type[Telling]] = {
            "count": Keeping, "echo": Echo, "hold": Hold, "timers": Timers,
        }  # fmt: skip
        computation: Any = kinds.get(node.kind, Through)(number, node)
        pipeline.add(computation, *inputs, name=f"n{number}")
    pipeline.sink(OUTPUTS[number], OUTPUT_TABLES[number])
    pipeline.sink(JOURNALS[number], JOURNAL_TABLES[number])


# -- running a plan --------------------------------------------------------------------------------


class Tape(Script):
    """One partition; it knows how far it has ever been read."""

    def __init__(self, number: int) -> None:
        super().__init__(f"partition {number}")
        self.read_once: list[int] = []
        """Per row that was read, what `promised` said when it was, for the first time."""
        self.promised: Callable[[], int] = int

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> ScriptReader:
        tape = self

        class Noting(ScriptReader):
            async def read(self, limit: int) -> Sequence[Any]:
                rows = await super().read(limit)
                new = self._next - len(tape.read_once)
                tape.read_once += [tape.promised()] * new
                return rows

        return self.opened(Noting(self, value_type, position["row"] if position else 0))


class Tapes:
    """A source of several partitions."""

    bounded = True

    def __init__(self, tapes: Sequence[Tape]) -> None:
        self._tapes = tapes

    def partitions(self) -> list[Partition]:
        return list(self._tapes)

    def describe(self) -> dict[str, Any]:
        return {"tapes": [tape.identity for tape in self._tapes]}


Watch = Callable[["Stage", Commit], None]


class Stage:
    """Runs a plan to its end: a new engine after every crash, takeover and restart."""

    def __init__(self, plan: Plan, watch: Watch | None = None) -> None:
        self.plan = plan
        self.watch = watch
        self.owners = plan.partitions()
        self.tapes = [Tape(number) for number in range(len(self.owners))]
        self.arrivals = plan.arrivals()
        self.fed = [0] * len(self.tapes)
        self.closing = False
        self.promised: dict[int, int] = {}
        """Interval -> the low watermark of a commit of it that was at least tried."""
        self.world = World(self._pipeline())
        self.world.on_try, self.world.on_durable = self._tried, self._durable
        self._faults = dict(plan.faults)
        self._cuts: dict[int, str] = {}
        self._over = False
        self._zombies: list[Engine] = []

    def _pipeline(self) -> Pipeline:
        plan = self.plan
        pipeline = Pipeline("graph", settings=plan.limits.settings())
        for number, source in enumerate(plan.sources):
            tapes = [t for t, owner in zip(self.tapes, self.owners, strict=True) if owner == number]
            pipeline.inject(
                SOURCES[number],
                Tapes(tapes),
                timestamp=time_of,
                lateness=source.lateness * SECOND,
                idle_after=IDLE_SECONDS * SECOND if source.idle else None,
                name=f"i{number}",
            )
        for number in range(len(plan.nodes)):
            add_node(pipeline, plan, number)
        return pipeline

    # -- faults -----------------------------------------------------------------------

    async def _tried(self, commit: Commit) -> None:
        for link in commit.intervals:
            known = self.promised.get(link.interval_id, link.low_watermark)
            self.promised[link.interval_id] = max(known, link.low_watermark)
        newest = self.world.engines[-1]
        if self._over or commit.intervals[0].sequencer not in {
            interval.commits.sequencer for interval in newest.intervals
        }:
            return  # a zombie's, or in vain
        fault = self._faults.pop(self.world.tried - 1, None)
        for _ in range(SLOW_TURNS if fault == "slow" else self.plan.limits.wire):
            await asyncio.sleep(0)
        if fault == "unavailable":
            raise StoreUnavailable("the store is away")
        if fault == "lost before":
            raise CommitUnknown("lost before the commit")
        if fault == "kill before":
            self._over = True
            await asyncio.Event().wait()
        if fault == "zombie":
            self._zombies.append(newest)
            self._over = True
        elif fault is not None and fault != "slow":
            self._cuts[id(commit)] = fault

    async def _durable(self, commit: Commit) -> None:
        if self.watch is not None:
            self.watch(self, commit)
        fault = self._cuts.pop(id(commit), None)
        if fault == "lost after":
            raise CommitUnknown("lost after the commit")
        if fault == "kill after":
            self._over = True
            await asyncio.Event().wait()

    # -- the course of things -----------------------------------------------------------

    async def run(self) -> World:
        world = self.world
        try:
            await self._start()
            for step in self.plan.steps:
                if isinstance(step, (Row, Word)):
                    self._feed(step)
                else:
                    read_on(world.engines[-1])
                    await self._go(step)
            self.closing = True
            env = world.engines[-1].env
            env.options = replace(env.options, keep_open=False)
            end_scripts(world.pipeline)
            read_on(world.engines[-1])
            await self._until(lambda: world.engines[-1].done.is_set())
            world.on_try = world.on_durable = None
            await world.engines[-1].stop()
        finally:
            await world.close()
        for failure in (zombie.failure for zombie in self._zombies):
            # Only a fenced zombie may have failed, and only of that.
            assert failure is None or isinstance(failure, Fenced), failure
        return world

    def _feed(self, step: Row | Word) -> None:
        said = [step.partition] if step.partition is not None else range(len(self.tapes))
        for partition in said:
            assert partition is not None
            stream = SOURCES[self.owners[partition]]
            given = self.arrivals[partition][self.fed[partition]]
            self.fed[partition] += 1
            if isinstance(given, Dot):
                self.tapes[partition].append(inject(stream, given))
            else:
                self.tapes[partition].append(advance(stream, at(given)))

    async def _go(self, step: Step) -> None:
        world = self.world
        if isinstance(step, Wait):
            for _ in range(step.turns):
                await self._turn()
        elif isinstance(step, Settle):
            await self._until(lambda: world.engines[-1].done.is_set())
        else:
            engine = world.engines[-1]
            stopping = asyncio.create_task(engine.stop())
            await self._until(lambda: stopping.done() or engine is not world.engines[-1])
            if engine is world.engines[-1]:
                stopping.result()
                await self._start()
            else:
                engine.fail(Fenced("it crashed while it was being stopped"))
                await stopping

    async def _until(self, condition: Callable[[], bool]) -> None:
        commits, idle = self.world.commits, 0
        for _ in range(ENDLESS_TURNS):
            if condition() and not self._over:
                return
            before = len(commits)
            await self._turn()
            idle = idle + 1 if len(commits) == before else 0
            if idle == STUCK_TURNS:
                break
        raise AssertionError(f"stuck\n{self.world.describe()}")

    async def _turn(self) -> None:
        engine = self.world.engines[-1]
        if self._over:
            if engine not in self._zombies:
                await engine.kill()
            await self._start()
        elif engine.failure is not None:
            raise engine.failure
        await asyncio.sleep(0)
        self.world.clock.advance(TICK_SECONDS)

    async def _start(self) -> None:
        self._over = False
        self._cuts.clear()
        await self.world.start(inject_copies=self.plan.copies, close_at_end=self.closing)

    # -- what came of it ------------------------------------------------------------------

    def outputs(self, number: int) -> list[Dot]:
        """What a node produced, in the order of its commits."""
        return [Dot(*row) for row in self.world.rows(OUTPUT_TABLES[number].name)]

    def journal(self, number: int) -> list[Event]:
        """What a node met and did, in the order of its commits."""
        return [Event(*row) for row in self.world.rows(JOURNAL_TABLES[number].name)]

    def panes(self, number: int) -> list[Closed]:
        """The panes of a node of windows, in the order of its commits."""
        return [Closed(*row) for row in self.world.rows(PANE_TABLES[number].name)]


def run(plan: Plan, watch: Watch | None = None) -> Stage:
    """Run a plan to its end."""
    stage = Stage(plan, watch)
    gc.disable()  # so short a run needs it no more than once, and it takes a seventh of the time
    try:
        asyncio.run(stage.run())
    finally:
        gc.enable()
    return stage


# -- the same by hand ------------------------------------------------------------------------------

Told = tuple[str, float, float, tuple[str, ...]]
"""A window at its end: key, start and end in seconds, the names in it."""


def sessions_of(dots: Sequence[Dot], gap: float) -> list[list[Dot]]:
    """Who is connected by steps below the gap, earliest first."""
    groups: list[list[Dot]] = []
    for dot in sorted(dots, key=lambda dot: dot.second):
        if groups and round(dot.second - groups[-1][-1].second, 6) < gap:
            groups[-1].append(dot)
        else:
            groups.append([dot])
    return groups


def told(key: str, start: float, end: float, dots: Sequence[Dot]) -> Told:
    return key, round(start, 6), round(end, 6), tuple(sorted(dot.name for dot in dots))


def windows_of(node: Node, second: float) -> list[tuple[float, float]]:
    """The standing windows that hold an instant, by search."""
    slide = node.slide if node.kind == "sliding" else node.size
    origin = to_micros(at(0)) // 10**6
    return [
        (start, start + node.size)
        for start in range(int(second) - node.size, int(second) + 1)
        if (start + origin) % slide == 0 and start <= second < start + node.size
    ]


def batch(node: Node, dots: Sequence[Dot]) -> list[Told]:
    """What a node of windows says in the end of all these."""
    found: dict[tuple[str, float, float], list[Dot]] = defaultdict(list)
    for key in {dot.key for dot in dots}:
        mine = [dot for dot in dots if dot.key == key]
        if node.kind == "session":
            for group in sessions_of(mine, node.size):
                found[key, group[0].second, group[-1].second + node.size] += group
        else:
            for dot in mine:
                for start, end in windows_of(node, dot.second):
                    found[key, start, end].append(dot)
    return sorted(told(*window, inside) for window, inside in found.items())


def takes(node: Node, end: float, watermark: float) -> bool:
    """Whether a window that ends there takes a record, by the words of the documents."""
    if end > watermark:  # its last microsecond is not behind the watermark
        return True
    if node.late == "drop":
        return False
    return node.allowed is None or end + node.allowed >= watermark


def in_time(node: Node, phases: Sequence[tuple[float, Sequence[Dot]]]) -> list[Told]:
    """What a node of windows says in the end of records that come when the watermark is known.

    A record comes in time for a session if the one that it would be in does.
    """
    if node.kind != "session":
        found: dict[tuple[str, float, float], list[Dot]] = defaultdict(list)
        for watermark, dots in phases:
            for dot in dots:
                for start, end in windows_of(node, dot.second):
                    if takes(node, end, watermark):
                        found[dot.key, start, end].append(dot)
        return sorted(told(*window, inside) for window, inside in found.items())
    accepted: dict[str, list[Dot]] = defaultdict(list)
    frozen: list[Told] = []
    gap = node.size

    def freeze(watermark: float) -> None:
        for key, dots in accepted.items():
            for group in sessions_of(dots, gap):
                if not takes(node, group[-1].second + gap, watermark):
                    frozen.append(told(key, group[0].second, group[-1].second + gap, group))
                    accepted[key] = [dot for dot in accepted[key] if dot not in group]

    for watermark, dots in phases:
        freeze(watermark)
        for dot in dots:
            groups = sessions_of([*accepted[dot.key], dot], gap)
            (mine,) = [group for group in groups if dot in group]
            if takes(node, mine[-1].second + gap, watermark):
                accepted[dot.key].append(dot)
    rest = [
        told(key, group[0].second, group[-1].second + gap, group)
        for key, dots in accepted.items()
        for group in sessions_of(dots, gap)
    ]
    return sorted(frozen + rest)


def remaining(panes: Sequence[Closed]) -> list[Told]:
    """What remains of a log of panes: the last of each key and start, until it is taken back.

    After a session has expired another may start at the same instant: a pane whose records
    are not all in the next one stands for itself.
    """
    rows: dict[tuple[str, datetime], Closed] = {}
    done: list[Closed] = []
    for pane in panes:
        known = rows.get((pane.key, pane.start))
        if known is not None and not set(known.names.split()) <= set(pane.names.split()):
            done.append(known)
        rows[pane.key, pane.start] = pane
    return sorted(
        (p.key, (p.start - at(0)) / SECOND, (p.end - at(0)) / SECOND, tuple(p.names.split()))
        for p in [*rows.values(), *done]
        if not p.retracted
    )


def values(plan: Plan) -> list[list[Dot]]:
    """What each source gives in the end."""
    arrivals, owners = plan.arrivals(), plan.partitions()
    return [
        [
            dot
            for partition, owner in enumerate(owners)
            if owner == number
            for dot in arrivals[partition]
            if isinstance(dot, Dot)
        ]
        for number in range(len(plan.sources))
    ]


def by_hand(plan: Plan, given: Sequence[Sequence[Dot]]) -> list[list[Dot]]:
    """What each stream has in the end, when every record is on time where that matters.

    Streams by number: first the sources', whose values are `given`, then the nodes'.
    """
    streams = [list(dots) for dots in given]
    for number, node in enumerate(plan.nodes):
        dots = [dot for stream in node.reads for dot in streams[stream]]
        if node.kind in WINDOWS:
            windows = batch(node, dots)
            made = [pane_dot(number, key, end, held, on_time=True) for key, _, end, held in windows]
        else:
            made = [out for dot in dots for out in outcome(number, node, dot)]
        streams.append(made)
    return streams


def knows(plan: Plan, number: int) -> bool:
    """Whether the timestamps of what a node reads do not depend on the course of things."""
    count = len(plan.sources)
    return all(
        stream < count
        or (plan.nodes[stream - count].kind in SIMPLE and knows(plan, stream - count))
        for stream in plan.nodes[number].reads
    )


# -- drawing plans ---------------------------------------------------------------------------------

SIMPLE: tuple[Kind, ...] = ("pass", "filter", "split", "count")
EXACT: tuple[Kind, ...] = (*SIMPLE, "echo", "hold")
"""Whose outcome is known of the values alone."""

Lates = Sequence[tuple[str, "int | None"]]
IN_TIME_ONLY: Lates = [("drop", None)]
ALL_KEPT: Lates = [("amend", None)]
ALL_LATENESS: Lates = [("drop", None), ("amend", None), ("amend", 5)]
SOME_LATENESS: Lates = [("drop", None), ("amend", None), ("amend", 0), ("amend", 4), ("amend", 9)]

PAUSES: Sequence[Step] = (Wait(3), Wait(12), Wait(40), Settle(), Restart())

Drawn = Callable[[Random], Plan]
"""Makes a plan of a source of chance. Lists that Hypothesis draws are mostly short and half of
all empty, and a graph without rows tells nothing: so it draws seeds, and failing plans are made
smaller by `smaller`."""


def drawn(make: Drawn) -> st.SearchStrategy[Plan]:
    """Plans for a property test."""
    return st.integers(0, 2**64 - 1).map(lambda seed: make(Random(seed)))


def limits(chance: Random) -> Limits:
    pick = chance.choice
    return Limits(
        intervals=pick([1, 1, 2, 3]),
        chunk=pick([1, 2, 100]),
        bundle=pick([1, 3, 1000]),
        unacked=pick([1, 5, 1000]),
        timers=pick([1, 2, 1000]),
        cache=pick([0, 1 << 20]),
        fold=pick([0.1, 2.0]),
        bucket=pick([2.0, 120.0]),
        wire=pick([0, 0, 3]),
    )


def faults(chance: Random) -> tuple[tuple[int, str], ...]:
    kinds = (*FAULTS, "slow", "slow")
    found = {chance.randint(0, 40): chance.choice(kinds) for _ in range(chance.randint(0, 5))}
    return tuple(sorted(found.items()))


def one_node(chance: Random, reads: Sequence[int], kinds: Sequence[Kind], lates: Lates) -> Node:
    kind = chance.choice(kinds)
    size = chance.randint(1, 6)
    order = tuple(sorted(reads))
    if kind in WINDOWS:
        late, allowed = chance.choice(lates)
        slide = chance.randint(1, 3) if kind == "sliding" else 1
        return Node(kind, order, size * slide, slide, late, allowed)
    slide = chance.randint(1, 2) if kind == "hold" else 1
    return Node(kind, order, size, slide, waits=chance.random() < 0.4)


def graph(
    chance: Random, sources: int, kinds: Sequence[Kind], lates: Lates, most: int
) -> tuple[Node, ...]:
    """Steps in which every source has a reader: chains, fan-in, fan-out, diamonds."""
    found: list[Node] = []
    for number in range(min(most, chance.choice([1, 1, 2, 2, 3, 3, 4, 6]))):
        streams = range(sources + number)
        reads = chance.sample(streams, min(len(streams), chance.choice([1, 1, 2, 3])))
        found.append(one_node(chance, reads, kinds, lates))
    read = {stream for each in found for stream in each.reads}
    for stream in range(sources):
        if stream not in read:
            number = chance.randrange(len(found))
            also = tuple(sorted({*found[number].reads, stream}))
            found[number] = replace(found[number], reads=also)
    return tuple(found)


def course(chance: Random, partitions: int, *, words: bool) -> tuple[Step, ...]:
    """Rows in any order, waits, stops."""
    found: list[Step] = []
    for _ in range(chance.randint(2, 9)):
        partition, drawn = chance.randrange(partitions), chance.random()
        if drawn < 0.7:
            key = chance.choice("abc")
            together = range(chance.choice([1, 1, 1, 4]))
            found += [Row(partition, key, chance.randint(0, 60)) for _ in together]
        elif words and drawn < 0.8:
            found.append(Word(partition, chance.randint(0, 60)))
        else:
            found.append(chance.choice(PAUSES))
    return tuple(found)


def plans(
    kinds: Sequence[Kind], *, punctual: bool | None = None, lates: Lates = IN_TIME_ONLY
) -> Drawn:
    """Any run of nodes of these kinds; a `punctual` one has no late rows at all."""

    def make(chance: Random) -> Plan:
        late = chance.random() < 0.8 if punctual is None else not punctual
        sources = tuple(
            Source(
                chance.choice([1, 1, 2]),
                chance.choice([0, 5, 100]) if late else FAR,
                late and chance.random() < 0.3,
            )
            for _ in range(chance.randint(1, MAX_SOURCES))
        )
        return Plan(
            sources,
            graph(chance, len(sources), kinds, lates, MAX_NODES),
            course(chance, sum(source.partitions for source in sources), words=late),
            limits(chance),
            faults(chance),
            chance.randint(1, 2),
        )

    return make


def either(*choices: Drawn) -> Drawn:
    """One of several kinds of plans."""
    return lambda chance: chance.choice(choices)(chance)


def phased(chance: Random) -> Plan:
    """Only words move the watermark, and only when nothing is on its way; rows come near it,
    behind and before. Sessions read sources alone, and rows come one by one to them: what is
    in time for a session may depend on what came before it."""
    sources = tuple(Source(chance.choice([1, 1, 2]), FAR) for _ in range(chance.randint(1, 2)))
    by_one = chance.random() < 0.4
    found = list(graph(chance, len(sources), SIMPLE, IN_TIME_ONLY, 3))
    streams = range(len(sources) + (0 if by_one else len(found)))
    kinds: tuple[Kind, ...] = ("session",) if by_one else ("tumbling", "sliding")
    for _ in range(chance.choice([1, 1, 2])):
        reads = chance.sample(streams, min(len(streams), chance.randint(1, 2)))
        found.append(one_node(chance, reads, kinds, SOME_LATENESS))
    partitions = sum(source.partitions for source in sources)
    watermark, steps = 0, list[Step]()
    for _ in range(chance.randint(2, 6)):
        for _ in range(1 if by_one else chance.randint(1, 4)):
            second = max(0, watermark + chance.randint(-12, 8))
            steps.append(Row(chance.randrange(partitions), chance.choice("aab"), second))
        steps.append(Settle())
        if move := chance.choice([0, 2, 5]):
            watermark += move
            steps += [Word(None, watermark), Settle()]
    return Plan(
        sources, tuple(found), tuple(steps), limits(chance), faults(chance), chance.randint(1, 2)
    )


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans that are a little less than this one: fewer rows, faults and nodes, fewer limits."""
    for size in (8, 4, 2, 1):
        for place in range(0, len(plan.steps), size):
            yield replace(plan, steps=plan.steps[:place] + plan.steps[place + size :])
    for place in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:place] + plan.faults[place + 1 :])
    for number in reversed(range(len(plan.nodes))):
        yield from _without(plan, number)
    if plan.copies > 1:
        yield replace(plan, copies=1)
    for name in Limits.__dataclass_fields__:
        usual = getattr(Limits(), name)
        if getattr(plan.limits, name) != usual:
            yield replace(plan, limits=replace(plan.limits, **{name: usual}))
    for number, each in enumerate(plan.nodes):
        plainer = [replace(each, waits=False)] if each.waits else []
        if len(each.reads) > 1:
            plainer += [
                replace(each, reads=tuple(read for read in each.reads if read != left))
                for left in each.reads
            ]
        if each.kind in ("filter", "split", "count", "echo"):
            plainer.append(Node("pass", each.reads))
        for node in plainer:
            nodes = (*plan.nodes[:number], node, *plan.nodes[number + 1 :])
            if _is_read(plan, nodes):
                yield replace(plan, nodes=nodes)


def _without(plan: Plan, number: int) -> Iterator[Plan]:
    """The plan without a node, if nobody reads it and all sources are still read."""
    stream = len(plan.sources) + number
    if len(plan.nodes) == 1 or any(stream in node.reads for node in plan.nodes):
        return
    nodes = tuple(
        replace(node, reads=tuple(read - (read > stream) for read in node.reads))
        for place, node in enumerate(plan.nodes)
        if place != number
    )
    if _is_read(plan, nodes):
        yield replace(plan, nodes=nodes)


def _is_read(plan: Plan, nodes: Sequence[Node]) -> bool:
    read = {stream for node in nodes for stream in node.reads}
    return set(range(len(plan.sources))) <= read


def phases(plan: Plan) -> list[tuple[float, list[list[Dot]]]]:
    """Of a `phased` plan: the watermark, and what each stream gets while it stands there."""
    found: list[tuple[float, list[list[Dot]]]] = []
    watermark = float("-inf")
    arrivals, owners = plan.arrivals(), plan.partitions()
    taken = [0] * len(owners)
    given: list[list[Dot]] = [[] for _ in plan.sources]
    for step in plan.steps:
        if isinstance(step, Word):
            watermark = step.second
            taken = [count + 1 for count in taken]
        elif isinstance(step, Row):
            dot = arrivals[step.partition][taken[step.partition]]
            assert isinstance(dot, Dot)
            given[owners[step.partition]].append(dot)
            taken[step.partition] += 1
        elif any(given):
            found.append((watermark, by_hand(plan, given)))
            given = [[] for _ in plan.sources]
    return found
