"""One pipeline in memory, under a clock that the test moves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any, Self, TypeVar

from millwheel.addresses import cell_address
from millwheel.clock import VirtualClock
from millwheel.codec import encode_key
from millwheel.errors import GraphError, UsageError
from millwheel.model import Key, from_micros, to_micros
from millwheel.pipeline import Pipeline
from millwheel.runtime.engine import Engine
from millwheel.runtime.process.load import FREE_OF_CHARGE
from millwheel.settings import Settings
from millwheel.store.memory import MemoryStore
from millwheel.streams import Stream
from millwheel.testing.letters import in_words
from millwheel.testing.rig import Rig, capture_table
from millwheel.testing.script import advance, inject

V = TypeVar("V")


def quick(settings: Settings) -> Settings:
    """The settings of a test: one interval each, and no commit waits for more work."""
    return replace(settings, intervals=1, idle_commit_seconds=0.0, watermark_commit_seconds=0.0)


class Harness:
    """Runs a pipeline on a store in memory, step by step.

    ::

        async with Harness(pipeline) as harness:
            await harness.inject(WORDS, "cat")
            await harness.advance(WORDS, at(60))
            assert harness.produced(COUNTS) == [...]

    Each call returns when everything that came of it is done. Wall time stands still
    until `sleep` moves it. A block without another error ends with an `AssertionError` if there are dead
    letters that the test has not read from `dead_letters`. The code of weak computations is called twice on each record, and has to
    produce the same both times: `NotTheSameAgain` shows both.
    """

    def __init__(self, pipeline: Pipeline, *, start: datetime | None = None) -> None:
        self._letters_read = 0
        self.clock = VirtualClock() if start is None else VirtualClock(to_micros(start))
        self.store = MemoryStore(pipeline.name, clock=self.clock)
        graph = pipeline.graph()
        written = {s.name: s for node in graph.nodes for s in node.writes if "__" not in s.name}
        self._rig = Rig(pipeline, (), written.values(), quick(pipeline.settings))
        self._engine = Engine(
            self._rig.pipeline,
            self.store,
            clock=self.clock,
            guard_shared=True,
            run_weak_twice=True,
            process=FREE_OF_CHARGE,
        )

    async def __aenter__(self) -> Self:
        await self._engine.start()
        await self._settle()
        return self

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self._engine.stop()
        await self.store.close()
        unread = self.store.dead_letters[self._letters_read :]
        if unread and kind is None:
            raise AssertionError(
                f"{in_words(unread, self._engine.steps)}\nIf the test expects them, let it read "
                "harness.dead_letters after they have come"
            )

    async def _settle(self) -> None:
        """Wait until the engine has read every row by itself, and stored what came of them."""
        if not self._engine.intervals:
            raise UsageError("a Harness works inside its block: async with Harness(...) as harness")
        for script in self._rig.scripts.values():
            await self._engine.run(script.caught_up, until_done=False)
        await self._engine.run()

    async def inject(self, stream: Stream[V], *values: V) -> None:
        """`values` come into `stream`, one after the other."""
        for value in values:
            self._rig.append(inject(stream, value))
        await self._settle()

    async def advance(self, stream: Stream[Any], at: datetime) -> None:
        """The source of `stream` promises: nothing on time is older than `at` any more."""
        self._rig.append(advance(stream, at))
        await self._settle()

    async def sleep(self, seconds: float) -> None:
        """Let wall time pass, and whatever it brings happen."""
        until = self.clock.now() + int(seconds * 1e6)
        while self.clock.now() < until:
            due = [t for i in self._engine.intervals if (t := i.next_wall_timer()) is not None]
            stop = min([until, *(t for t in due if t > self.clock.now())])
            self.clock.advance((stop - self.clock.now()) / 1e6)
            self._engine.done.clear()
            self._engine.lane.wake.set()
            for _ in range(5):
                await asyncio.sleep(0)
            self._engine.check_finished()
            await self._settle()

    def produced(self, stream: Stream[V]) -> list[V]:
        """Every value produced to `stream` so far, in the order of their commits."""
        if stream.name not in {s.name for s in self._rig.captured}:
            raise GraphError(f"nothing in this pipeline writes stream {stream.name!r}")
        rows = self.store.rows(capture_table(stream).name)
        return [stream.codec.decode(str(row[0]).encode()) for row in rows]

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """The rows of a table sink."""
        return self.store.rows(table)

    def state(self, computation: str, key: Key) -> dict[str, Any]:
        """What is stored of a key: entry -> decoded JSON; the state object's entry is empty."""
        return self.store.state(computation, encode_key(key)[0])

    def shared(self, computation: str, key: Key) -> Any:
        """What is stored of the table that the records of a key see: decoded JSON, or None where
        it is as empty as it was in the beginning."""
        node = self._rig.pipeline.graph().by_name.get(computation)
        if node is None or not node.cells:
            raise UsageError(f"{computation!r} reads nothing by broadcast")
        grain, slot = node.grain, encode_key(key)[1]
        return self.store.state(computation, cell_address(slot // grain, grain).key_text).get("")

    def counters(self, computation: str) -> dict[str, int]:
        """What a computation has counted."""
        totals: dict[str, int] = {}
        for interval in self._engine.intervals:
            if interval.step.name == computation:
                for name, count in interval.counters.items():
                    totals[name] = totals.get(name, 0) + count
        return totals

    def low_watermark(self, computation: str) -> datetime:
        """What a computation has promised to its readers."""
        return from_micros(
            min(i.durable for i in self._engine.intervals if i.step.name == computation)
        )

    @property
    def dead_letters(self) -> list[Any]:
        """The records and rows that were given up on.

        To read this is to expect them: letters that come later, or that are never read, are an
        `AssertionError` at the end of the block.
        """
        self._letters_read = len(self.store.dead_letters)
        return self.store.dead_letters
