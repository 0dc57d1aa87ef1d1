"""What befalls the service on Kafka: to its workers, its brokers and its key intervals."""

from __future__ import annotations

import asyncio
import random
import signal
from itertools import pairwise

from examples.kafka_broker import KafkaBroker
from millwheel.core.clock import SystemClock
from millwheel.errors import MillwheelError
from millwheel.services.operating import Operator
from millwheel.store.port.placement import PlacedInterval
from millwheel.store.postgres.store import PostgresStore
from tests.support.worker_processes import Workers

KINDS = {
    "kill": "a worker is killed, and another one started",
    "zombie": "a worker is frozen until another one has taken over, and wakes",
    "broker": "all brokers are killed, and started again",
    "node": "one of several brokers is killed, and started again",
    "frozen": "all brokers are frozen for 5 to 30 seconds",
    "cut": "an interval is split, merged or moved",
}

MOST_PARTS = 6
"""So many intervals of a step, and none of them is split any more."""

CUT_SECONDS = 8.0
"""How long an operator waits for a split, merge or move."""


class Faults:
    """Faults by chance.

    Args:
        turn: held by the writer of the input, and while the brokers are away.
        frozen_seconds: the shortest and the longest time for which the brokers are frozen.
    """

    def __init__(
        self,
        workers: Workers,
        broker: KafkaBroker,
        turn: asyncio.Lock,
        choice: random.Random,
        frozen_seconds: tuple[float, float],
    ) -> None:
        self._workers = workers
        self._brokers = broker
        self._turn = turn
        self._choice = choice
        self._frozen_seconds = frozen_seconds
        self.cuts: list[str] = []
        """The splits, merges and moves that were carried out."""

    async def __call__(self, kind: str) -> None:
        """Let a fault of a kind happen, and return when it is over."""
        await getattr(self, f"_{kind}")()

    async def _kill(self) -> None:
        self._workers.replace(self._choice)

    async def _zombie(self) -> None:
        await self._workers.freeze(self._choice)

    async def _broker(self) -> None:
        async with self._turn:
            await asyncio.to_thread(self._brokers.signal, signal.SIGKILL)
            await asyncio.sleep(self._choice.uniform(0, 5))
            await asyncio.to_thread(self._brokers.start)

    async def _node(self) -> None:
        """The others go on, and so do the workers and the writer."""
        node = self._choice.choice(self._brokers.nodes)
        await asyncio.to_thread(self._brokers.signal, signal.SIGKILL, [node])
        await asyncio.sleep(self._choice.uniform(0, 10))
        await asyncio.to_thread(self._brokers.start)

    async def _frozen(self) -> None:
        async with self._turn:
            await asyncio.to_thread(self._brokers.signal, signal.SIGSTOP)
            await asyncio.sleep(self._choice.uniform(*self._frozen_seconds))
            await asyncio.to_thread(self._brokers.signal, signal.SIGCONT)

    async def _cut(self) -> None:
        store = await PostgresStore(self._workers.url, self._workers.name).open()
        try:
            placement = await store.read_placement()
            rows = [row for row in placement.intervals if row.kind == "computation"]
            operator = Operator(store, SystemClock(), lambda _: None)
            done = await self._ask(operator, rows, [worker.id for worker in placement.workers])
        except MillwheelError:
            return  # its worker died, or it was claimed in between
        finally:
            await store.close()
        if done:
            self.cuts.append(done)

    async def _ask(self, operator: Operator, rows: list[PlacedInterval], workers: list[str]) -> str:
        rows = [row for row in rows if row.slot_to - row.slot_from > 1]
        if not rows:
            return ""  # no worker has begun yet
        rows.sort(key=lambda row: (row.computation, row.slot_from))
        row = self._choice.choice(rows)
        parts = [one for one in rows if one.computation == row.computation]
        what = self._choice.choice(("split", "merge", "move"))
        if what == "move":
            await operator.move(row.id, self._choice.choice(workers), CUT_SECONDS)
            await operator.unpin(row.id)
        elif len(parts) > 1 and (what == "merge" or len(parts) >= MOST_PARTS):
            lower, upper = self._choice.choice(list(pairwise(parts)))
            await operator.merge(lower.id, upper.id, CUT_SECONDS)
            what = "merge"
        else:
            at = self._choice.randrange(row.slot_from + 1, row.slot_to)
            await operator.split(row.id, at, CUT_SECONDS)
            what = "split"
        return what
