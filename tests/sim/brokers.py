"""A simulated Kafka, for the sink of the live code: transactions, writers that are fenced,
positions.

A request takes time; it may be lost before it arrives, or its answer after it took effect. It takes
effect whatever has become of the worker meanwhile. As in Kafka:

* Becoming the writer of an id aborts what its predecessor has left open, or waits for the end of
  what that has committed, and refuses each later request of the predecessor.
* A commit is decided at once; messages and position show a moment later.
* What is aborted is never read.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from random import Random
from typing import Any, TypeVar

from millwheel.kafka import KafkaCluster, KafkaSink
from millwheel.kafka.port import Interrupted, KafkaOutput, Message, Position, Topic
from tests.sim.scenario import Calls

T = TypeVar("T")

PARTITIONS = 2
SHOW_SECONDS = 0.05
"""The longest time from a commit to where it shows."""
AGAIN_SECONDS = 0.05
"""After which a client asks again that was not answered."""


class Brokers:
    """The brokers, and all that is written.

    Args:
        chance: draws times and troubles.
        calls: how bad calls are.
    """

    def __init__(self, chance: Random, calls: Calls) -> None:
        self.calls = calls
        self.away = False
        self.written: dict[str, list[Message]] = defaultdict(list)
        """By topic, the messages of committed transactions."""
        self.begun: dict[str, int] = defaultdict(int)
        """By id, how many writers it has had."""
        self._positions: dict[tuple[str, str], Position] = {}
        self._ending: dict[str, asyncio.Event] = {}
        """By id, a transaction that is committed and does not show yet."""
        self._chance = chance
        self._context = copy_context()  # what arrives belongs to no worker
        self._tasks: set[asyncio.Task[None]] = set()

    def go_away(self) -> None:
        """Answer nobody; what has arrived takes effect."""
        self.away = True

    def come_back(self) -> None:
        """Answer again."""
        self.away = False

    async def ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """Have something done by the brokers.

        Raises:
            Interrupted: the connection breaks; it is not known whether it was done.
        """
        loop, chance = asyncio.get_running_loop(), self._chance
        answer: asyncio.Future[T] = loop.create_future()
        await asyncio.sleep(self._pause())
        if self.away or chance.random() < self.calls.lost:
            raise Interrupted("nobody answers")
        torn = chance.random() < self.calls.torn

        async def do() -> None:
            await asyncio.sleep(self._pause())
            try:
                found = await work()
            except Interrupted as error:
                if not answer.done():
                    answer.set_exception(error)
                return
            if not answer.done():
                answer.set_result(found)

        task = loop.create_task(do(), context=self._context.copy())
        self._keep(task)
        if torn:
            raise Interrupted("the connection broke")
        return await answer

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _pause(self) -> float:
        calls, chance = self.calls, self._chance
        slow = chance.random() < calls.slow
        return chance.random() * (calls.slow_seconds if slow else calls.usual_seconds)

    # -- what arrives -------------------------------------------------------------------

    async def begin(self, id_: str) -> int:
        """The number of the new writer of an id."""
        ending = self._ending.get(id_)
        if ending is not None:
            await ending.wait()
        self.begun[id_] += 1
        return self.begun[id_]

    async def write(
        self, id_: str, number: int, topic: str, messages: Sequence[Message], position: Position
    ) -> None:
        """A whole transaction: its messages, its position and its commit.

        Raises:
            Interrupted: the writer was fenced; nothing is written.
        """
        await asyncio.sleep(self._pause())
        if self.begun[id_] != number:
            raise Interrupted("another writer has begun")
        shown = self._ending[id_] = asyncio.Event()
        self._keep(asyncio.ensure_future(self._show(id_, topic, list(messages), position, shown)))

    async def _show(
        self,
        id_: str,
        topic: str,
        messages: list[Message],
        position: Position,
        shown: asyncio.Event,
    ) -> None:
        await asyncio.sleep(self._chance.random() * SHOW_SECONDS)
        self.written[topic] += messages
        self._positions[id_, topic] = position
        del self._ending[id_]
        shown.set()

    async def position(self, id_: str, topic: str) -> Position | None:
        return self._positions.get((id_, topic))


class SimulatedSink(KafkaSink):
    """The sink of the live code, on simulated brokers."""

    def __init__(self, brokers: Brokers, topic: str, **options: Any) -> None:
        super().__init__(KafkaCluster("simulated:9092"), topic, **options)
        self._brokers = brokers

    def connect(self) -> KafkaOutput:
        return SimulatedClient(self._brokers)


class SimulatedClient:
    """A connection: as that of aiokafka, it asks again until it is answered, but for a
    transaction."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def wait_for_ever(self) -> None: ...

    async def topic(self, name: str) -> Topic | None:
        return Topic(name, range(PARTITIONS))

    async def settings(self, topic: str) -> dict[str, str | None]:
        return {}

    async def writer(self, id: str | None) -> SimulatedWriter:
        assert id is not None
        number = await self._patiently(lambda: self._brokers.begin(id))
        return SimulatedWriter(self._brokers, id, number)

    async def position(self, id: str, topic: str) -> Position | None:
        return await self._patiently(lambda: self._brokers.position(id, topic))

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await self._brokers.ask(work)
            except Interrupted:
                await asyncio.sleep(AGAIN_SECONDS)

    async def close(self) -> None: ...


class SimulatedWriter:
    """A writer of an id, until another one begins."""

    def __init__(self, brokers: Brokers, id: str, number: int) -> None:
        self._brokers = brokers
        self._id = id
        self._number = number

    async def write(
        self,
        topic: str,
        messages: Sequence[Message],
        position: Position | None,
        *,
        singly: bool = False,
    ) -> None:
        assert position is not None
        brokers, id_, number = self._brokers, self._id, self._number
        await brokers.ask(lambda: brokers.write(id_, number, topic, messages, position))

    async def close(self) -> None: ...
