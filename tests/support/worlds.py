"""A store in memory and the engines that run on it, broken at will.

A `World` is one store and one clock that outlive any number of engines. It watches every
commit as it becomes durable. Nothing waits for real time: `World.until` turns the event
loop until something holds, and moves the clock on if it is told to.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any

from millwheel import Pipeline
from millwheel.core.clock import VirtualClock
from millwheel.core.codec import encode_key
from millwheel.core.model import Key
from millwheel.errors import CommitUnknown
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.interval_fold import fold
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.store.memory import MemoryStore
from millwheel.store.port.commit import Commit
from millwheel.testing.script import Script

TURNS = 20_000
"""Turns of the event loop after which something counts as stuck."""


def scripts_of(pipeline: Pipeline) -> list[Script]:
    """The scripts that a pipeline reads."""
    injections = [node.injection for node in pipeline.nodes.values() if node.injection is not None]
    partitions = [p for injection in injections for p in injection.source.partitions()]
    return [partition for partition in partitions if isinstance(partition, Script)]


def end_scripts(pipeline: Pipeline) -> None:
    """Say of all scripts that no row will follow: event time ends with them."""
    for script in scripts_of(pipeline):
        script.end()


def read_on(engine: Engine) -> None:
    """Let `engine.done` count what has been appended to the scripts by now."""
    engine.done.clear()
    for script in scripts_of(engine.pipeline):
        script.wake()


Hook = Callable[[Commit], "Awaitable[None] | None"]


class World:
    """A store and a clock, and the engines that run on them."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.clock = VirtualClock()
        self.store = MemoryStore(pipeline.name, clock=self.clock)
        self.engines: list[Engine] = []
        self.commits: list[Commit] = []
        """Every commit that became durable, in order."""
        self.tried = 0
        """Commits that reached the store, durable or not."""
        self.on_try: Hook | None = None
        """Called with each commit before the store looks at it; `tried` counts it already."""
        self.on_durable: Hook | None = None
        """Called with each commit once it is durable, before the lane hears of it."""
        self.store.faults.before_commit = self._before
        self.store.faults.after_commit = self._after

    async def _before(self, commit: Commit) -> None:
        self.tried += 1
        if self.on_try is not None and (answer := self.on_try(commit)) is not None:
            await answer

    async def _after(self, commit: Commit) -> None:
        self.commits.append(commit)
        if self.on_durable is not None and (answer := self.on_durable(commit)) is not None:
            await answer

    # -- engines ------------------------------------------------------------------

    async def start(self, pipeline: Pipeline | None = None, **options: Any) -> Engine:
        """A new engine that takes over whatever another one held."""
        if options.pop("close_at_end", False):
            end_scripts(pipeline or self.pipeline)
        else:
            options.setdefault("keep_open", True)
        of_run = {field.name for field in fields(Options)} & options.keys()
        made = Options(**{name: options.pop(name) for name in of_run})
        options.setdefault("process", FREE_OF_CHARGE)
        engine = Engine(
            pipeline or self.pipeline,
            self.store,
            clock=self.clock,
            take_over=True,
            options=made,
            **options,
        )
        self.engines.append(engine)
        await engine.start()
        return engine

    async def until(
        self, condition: Callable[[], object], *, tick: float = 0.0, what: str = ""
    ) -> None:
        """Turn the loop until `condition` holds; each turn takes `tick` seconds.

        Raises:
            MillwheelError: the newest engine failed.
            AssertionError: it never came to hold.
        """
        for _ in range(TURNS):
            if condition():
                return
            for engine in self.engines[-1:]:
                if engine.failure is not None:
                    raise engine.failure
            await asyncio.sleep(0)
            if tick:
                self.clock.advance(tick)
        raise AssertionError(f"stuck{': ' + what if what else ''}\n{self.describe()}")

    async def turns(self, number: int = 50, tick: float = 0.0) -> None:
        """Let everybody go on for a while."""
        for _ in range(number):
            await asyncio.sleep(0)
            if tick:
                self.clock.advance(tick)

    async def finish(self, engine: Engine, *, tick: float = 0.05) -> None:
        """Run an engine to the end of its input and stop it."""
        await self.until(engine.done.is_set, tick=tick, what="not done")
        await engine.stop()

    async def run(self, *, tick: float = 0.05, **options: Any) -> Engine:
        """Start, run to the end, stop."""
        engine = await self.start(**options)
        await self.finish(engine, tick=tick)
        return engine

    async def close(self) -> None:
        """End whatever still runs."""
        for engine in self.engines:
            await engine.kill()

    def describe(self) -> str:
        """Where the newest engine stands."""
        if not self.engines:
            return "no engine"
        engine = self.engines[-1]
        now = self.clock.now()
        lines = [f"failure {engine.failure!r}, tried {self.tried}, durable {len(self.commits)}"]
        for interval in engine.intervals:
            logs = [(log.id, log.first, log.next_seq, log.unacked) for log in interval.logs]
            lines.append(
                f"{interval.name}: input {interval.watermarks.input} stored "
                f"{interval.watermarks.durable} intake {len(interval.intake)} busy "
                f"{list(interval.backlog)} dirty {interval.dirty} logs {logs} holds "
                f"{len(interval.watermarks.holds)} due {interval.timers.has_due(now)}"
            )
        return "\n".join(lines)

    # -- what came of it ----------------------------------------------------------

    def rows(self, table: str = "out") -> list[tuple[Any, ...]]:
        return self.store.rows(table)

    def tallied(self) -> dict[str, list[tuple[int, int]]]:
        """Per key, (number, count) of the table `out` in the order of the producer."""
        found: dict[str, list[tuple[int, int, int, int]]] = defaultdict(list)
        for key, number, count, sender, sequence in self.rows():
            found[key].append((sender, sequence, number, count))
        return {key: [(n, c) for _, _, n, c in sorted(rows)] for key, rows in found.items()}

    def numbers(self) -> list[int]:
        """The numbers in the table `out`, in the order of their commits."""
        return [row[1] for row in self.rows()]

    def letters(self) -> list[tuple[str, str]]:
        """(value, error) of each dead letter."""
        return [(letter.value, letter.error) for letter in self.store.dead_letters]

    def counter(self, computation: str, name: str) -> int:
        """A counter of the newest engine."""
        return sum(
            i.counters.totals.get(name, 0)
            for i in self.engines[-1].intervals
            if i.step.name == computation
        )

    def state(self, computation: str, key: Key) -> dict[str, Any]:
        return self.store.state(computation, encode_key(key)[0])

    def interval(self, name: str, number: int = 0) -> Interval:
        """An interval of the newest engine."""
        return [i for i in self.engines[-1].intervals if i.step.name == name][number]


class Gate:
    """User code or a store call that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = 0
        self._open = asyncio.Event()

    async def wait(self) -> None:
        self.reached += 1
        await self._open.wait()

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()


def fail_once(world: World, number: int, error: Exception) -> None:
    """The `number`-th commit that is tried from now on fails with `error`, leaving no trace."""
    target = world.tried + number

    def refuse(commit: Commit) -> None:
        if world.tried == target:
            raise error

    world.on_try = refuse


def unknown_once(world: World, number: int) -> None:
    """The connection breaks after the `number`-th commit from now on became durable."""
    target = len(world.commits) + number

    def cut(commit: Commit) -> None:
        if len(world.commits) == target:
            raise CommitUnknown("the connection was lost")

    world.on_durable = cut


async def run_and_fold(world: World) -> None:
    """To the end of the input, and everything into the current tables."""
    engine = await world.start()
    await world.until(engine.done.is_set)
    for interval in engine.intervals:
        await fold(engine.store, interval)
    await engine.stop()
