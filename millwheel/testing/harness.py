"""Runs a pipeline on an in-memory store, with a virtual clock that the test moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Generator
from dataclasses import replace
from datetime import datetime
from typing import Any, Self, TypeVar

from millwheel.core.addresses import cell_address
from millwheel.core.clock import VirtualClock
from millwheel.core.codec import encode_key
from millwheel.core.counters import ENGINE_COUNTERS
from millwheel.core.model import Key, from_micros, to_micros
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import GraphError, UsageError
from millwheel.graph.node import Node
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.settings import Settings
from millwheel.sinks import Table
from millwheel.store.memory import MemoryStore
from millwheel.streams import Stream
from millwheel.testing.determinism import twice
from millwheel.testing.frames import state_rows
from millwheel.testing.harness_sources import HarnessPipeline, capture_table
from millwheel.testing.letter_texts import format_dead_letters
from millwheel.testing.script import advance, inject

V = TypeVar("V")


def quick(settings: Settings) -> Settings:
    """Settings for tests: one interval per computation, and commits do not wait for more
    records."""
    return replace(settings, intervals=1, idle_commit_seconds=0.0, watermark_commit_seconds=0.0)


class Harness:
    """Runs a pipeline on an in-memory store, step by step.

    ```python
    pipeline.add(AddUp(), ORDERS.by(customer))
    async with Harness(pipeline) as harness:
        await harness.inject(ORDERS, TEA, MILK)
        assert harness.produced(SPENT) == [300, 390]
    ```

    Each call returns when all its effects are durable. Wall time only advances in `sleep`. The
    block ends with an `AssertionError` if there are dead letters that the test has not read, unless
    another error ends it. The code of weak computations is called twice on each record and must
    produce the same outputs; otherwise `NotTheSameAgain` shows both. In a notebook, ``harness =
    await Harness(pipeline)`` starts it for all cells, until ``await harness.close()``.

    Args:
        start: wall time at the beginning.
        database: URL of a Postgres in which the statements of `Context.execute` run, in one
            transaction for each commit and with the pipeline's schema and ``public`` as search
            path; None: they do not run.
    """

    def __init__(
        self, pipeline: Pipeline, *, start: datetime | None = None, database: str | None = None
    ) -> None:
        self._letters_read = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.clock = VirtualClock() if start is None else VirtualClock(to_micros(start))
        self.store = MemoryStore(pipeline.name, clock=self.clock, database=database)
        graph = pipeline.graph()
        self._names = list(graph.by_name)
        written = {s.name: s for node in graph.nodes for s in node.writes if "__" not in s.name}
        self._copy = HarnessPipeline(
            pipeline, (), written.values(), quick(pipeline.settings), self.clock
        )
        self._engine = Engine(
            self._copy.pipeline,
            self.store,
            clock=self.clock,
            options=Options(
                guard_shared=True,
                compare_stored=True,
                wrap_weak=twice,
                least_level=logging.WARNING,
            ),
            process=FREE_OF_CHARGE,
        )

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise UsageError("this harness was started before: make a new Harness(pipeline)")
        self._loop = asyncio.get_running_loop()
        await self._engine.start()
        await self._settle()
        return self

    async def close(self) -> None:
        """End the harness, as its block does.

        ```python
        pipeline.add(AddUp(), ORDERS.by(customer))
        harness = await Harness(pipeline)  # in a cell of a notebook; more cells can follow
        await harness.inject(ORDERS, TEA)
        await harness.close()
        ```
        """
        await self.__aexit__(None, None, None)

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        if self._closed:
            return
        self._check_running()
        self._closed = True
        await self._engine.stop()
        await self.store.close()
        unread = self.store.dead_letters[self._letters_read :]
        if unread and kind is None:
            raise AssertionError(
                f"{format_dead_letters(unread, self._engine.exchange.steps)}\nIf the test expects "
                "them, read harness.dead_letters at the end of the test"
            )

    def _check_running(self) -> None:
        if self._loop is None or self._closed:
            raise UsageError(
                "use a Harness inside its block: async with Harness(...) as harness; or between "
                "harness = await Harness(...) and await harness.close()"
            )
        if self._loop is not asyncio.get_running_loop():
            raise UsageError(
                "this harness was started in another event loop, where its pipeline runs. Await "
                "all its calls in one loop: that of a notebook, or one asyncio.run for all of them"
            )

    async def _settle(self) -> None:
        self._check_running()
        for script in self._copy.scripts:
            await self._engine.run(script.caught_up, until_done=False)
        await self._engine.run()

    async def inject(self, stream: Stream[V], *values: V, at: datetime | None = None) -> None:
        """Inject values into a stream, one after the other, by its first injector.

        ```python
        pipeline.add(AddUp(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA, MILK, at=at(60))
            assert harness.low_watermark("add_up") == at(60)
        ```

        Args:
            at: the event time that the source gives them, for an injector without ``timestamp=``;
                None: the harness's wall time.
        """
        for value in values:
            self._copy.append(inject(stream, value, at=at))
        await self._settle()

    async def advance(self, stream: Stream[Any], at: datetime) -> None:
        """Advance the watermark of a stream's sources: values older than `at` are late from now on.

        ```python
        pipeline.add(AddUp(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.advance(ORDERS, at(60))
            assert harness.low_watermark("add_up") == at(60)
        ```
        """
        self._copy.append(advance(stream, at))
        await self._settle()

    async def sleep(self, seconds: float) -> None:
        """Advance wall time, firing the wall-clock timers that become due.

        ```python
        pipeline.add(AddUp(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.sleep(seconds=60)
        ```
        """
        self._check_running()
        if not isinstance(seconds, int | float):
            raise UsageError(f"sleep({seconds!r}): give a number of seconds, such as 60 or 0.5")
        until = self.clock.now() + int(seconds * 1e6)
        while self.clock.now() < until:
            due = [t for i in self._engine.intervals if (t := i.timers.next_wall()) is not None]
            stop = min([until, *(t for t in due if t > self.clock.now())])
            self.clock.advance((stop - self.clock.now()) / 1e6)
            self._engine.done.clear()
            self._engine.lane.wake.set()
            for _ in range(5):
                await asyncio.sleep(0)
            self._engine.env.check_finished()
            await self._settle()

    def produced(self, stream: Stream[V]) -> list[V]:
        """The values produced to `stream` so far, in the order of their commits.

        ```python
        pipeline.add(AddUp(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA)
            assert harness.produced(SPENT) == [300]
        ```

        Raises:
            GraphError: the pipeline does not write the stream.
        """
        known = [captured.name for captured in self._copy.captured]
        if stream.name not in known:
            message = (
                f"no computation of pipeline {self._copy.pipeline.name!r} writes stream "
                f"{stream.name!r}; it writes: {', '.join(known)}"
            )
            raise GraphError(with_suggestion(message, stream.name, known))
        rows = self.store.rows(capture_table(stream).name)
        return [stream.codec.decode(str(row[0]).encode()) for row in rows]

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of a table sink.

        ```python
        pipeline.sink(ORDERS, Table("bill", Order))
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA)
            assert harness.rows("bill") == [("ann", "tea", 300)]
        ```

        Raises:
            UsageError: the pipeline has no such table.
        """
        sinks = [use.sink for _, use in self._copy.pipeline.sinks]
        tables = [sink.name for sink in sinks if isinstance(sink, Table)]
        captured = {capture_table(stream).name for stream in self._copy.captured}
        self._check_name("table", table, [name for name in tables if name not in captured])
        return self.store.rows(table)

    def statements(self) -> list[tuple[str, tuple[Any, ...]]]:
        """The committed statements of `Context.execute` with their parameters, in order."""
        return [(str(text), tuple(values or ())) for text, values in self.store.statements]

    def state(self, computation: str, key: Key) -> dict[str, Any]:
        """A key's stored state: entry -> decoded JSON; the state object's entry is ``""``.

        ```python
        pipeline.add(AddUp(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA)
            assert harness.state("add_up", "ann") == {"": {"cents": 300}}
        ```

        It is empty for a key that has none.

        Raises:
            UsageError: the pipeline has no such computation.
        """
        self._check_computation(computation)
        return self.store.state(computation, encode_key(key)[0])

    def states(self, computation: str) -> list[dict[str, Any]]:
        """The stored states of all keys, in their order: each with the fields of the state, and its
        ``key``.

        ```python
        pipeline.add(AddUp(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA)
            assert harness.states("add_up") == [{"key": "ann", "cents": 300}]
        ```

        A `MapState` is a dict, a `ListState` a list; values are decoded JSON. `frame` makes a table
        of them.

        Raises:
            UsageError: the pipeline has no such computation.
        """
        node = self._check_computation(computation)
        found = (state for state in self.store.states() if state.computation == computation)
        return state_rows(found, node.layout)

    def shared(self, computation: str, key: Key) -> Any:
        """The stored broadcast table of a key's records, decoded JSON; None: it is in its initial
        state.

        Raises:
            UsageError: there is no such computation, or it does not read a broadcast stream.
        """
        node = self._check_computation(computation)
        if not node.cells:
            raise UsageError(f"{computation!r} reads no stream by broadcast")
        grain, slot = node.grain, encode_key(key)[1]
        return self.store.state(computation, cell_address(slot // grain, grain).key_text).get("")

    def counters(self, computation: str) -> dict[str, int]:
        """The counters of a computation: those of `Context.count`, and the engine's.

        ```python
        class Cents(Computation[Order, None]):
            async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
                ctx.count("cents", record.value.cents)

        pipeline.add(Cents(), ORDERS.by(customer))
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA, MILK)
            assert harness.counters("cents") == {"cents": 390, "processed": 2}
            assert harness.counted("cents") == {"cents": 390}
        ```

        A counter that nothing has added to is missing. The engine's have the names of `millwheel
        status`, such as ``processed``, ``records_out`` and ``duplicates_dropped``; a release may
        add some, so compare a whole dict with `counted`.

        Raises:
            UsageError: the pipeline has no such computation.
        """
        self._check_computation(computation)
        totals: dict[str, int] = {}
        for interval in self._engine.intervals:
            if interval.step.name == computation:
                for name, count in interval.counters.totals.items():
                    totals[name] = totals.get(name, 0) + count
        return totals

    def counted(self, computation: str) -> dict[str, int]:
        """The counters of `Context.count` alone, also those of ready-made computations.

        Raises:
            UsageError: the pipeline has no such computation.
        """
        found = self.counters(computation)
        return {name: count for name, count in found.items() if name not in ENGINE_COUNTERS}

    def low_watermark(self, computation: str) -> datetime:
        """The low watermark that a computation has published to its readers.

        Raises:
            UsageError: the pipeline has no such computation.
        """
        self._check_computation(computation)
        return from_micros(
            min(i.watermarks.durable for i in self._engine.intervals if i.step.name == computation)
        )

    def _check_computation(self, name: str) -> Node:
        self._check_name("computation", name, self._names)
        return self._copy.pipeline.graph().by_name[name]

    def _check_name(self, what: str, name: str, known: Collection[str]) -> None:
        if name in known:
            return
        message = (
            f"pipeline {self._copy.pipeline.name!r} has no {what} {name!r}; it has: "
            f"{', '.join(known) or 'none'}"
        )
        raise UsageError(with_suggestion(message, str(name), known))

    @property
    def dead_letters(self) -> list[Any]:
        """The dead letters so far: records and rows that failed for good.

        ```python
        class Refuse(Computation[Order, None]):
            async def process_record(self, record: Record[Order], ctx: Context[None]) -> None:
                raise ValueError("no order is good enough")

        pipeline.add(Refuse(), ORDERS.by(customer), on_error="dead_letter")
        async with Harness(pipeline) as harness:
            await harness.inject(ORDERS, TEA)
            assert len(harness.dead_letters) == 1
        ```

        Reading it marks them as expected: dead letters that appear later, or are never read, raise
        an `AssertionError` at the end of the block.
        """
        self._letters_read = len(self.store.dead_letters)
        return self.store.dead_letters
