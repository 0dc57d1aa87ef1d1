"""Inputs of weak computations that wait too long for what came of them (paper 6.1.3).

After `straggler_after` an input is *noted*: a commit says that it was seen, and stores what has not
arrived (`millwheel.runtime.modes.ack_chain`). Its sender is acknowledged then, and waits no more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from millwheel.context import STRAGGLERS
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.modes.ack_chain import AckChain
from millwheel.runtime.process.tasks import end

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine
    from millwheel.runtime.lane.lane import Lane


class Stragglers:
    """Waits, for one lane, for inputs to be overdue; only while some may be."""

    def __init__(self, lane: Lane, engine: Engine) -> None:
        self._lane = lane
        self._engine = engine
        self._watching: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Something was sent that may become overdue."""
        if self._watching is None or self._watching.done():
            self._watching = self._engine.spawn(self._watch(), "stragglers")

    async def stop(self) -> None:
        """The lane takes no more work."""
        watching, self._watching = self._watching, None
        if watching is not None:
            await end([watching])

    async def _watch(self) -> None:
        """Note what is overdue, until nothing waits."""
        clock = self._engine.clock
        while (due := self._next_overdue()) is not None:
            if (left := due - clock.monotonic()) > 0:
                await clock.sleep(min(left, self._shortest_wait()))
            now = clock.monotonic()
            for interval, chain in self._chains():
                if overdue := chain.overdue(now):
                    outputs = sum(len(waiting.outputs) for waiting in overdue)
                    causes = [waiting.cause for waiting in overdue]
                    self._lane.note(interval, causes, {STRAGGLERS: outputs})

    def _chains(self) -> list[tuple[Interval, AckChain]]:
        """Of the lane's intervals that are not on their way out: who comes next begins anew."""
        intervals = self._lane.intervals
        return [(i, i.chain) for i in intervals if i.chain is not None and not i.leaving]

    def _next_overdue(self) -> float | None:
        """When the next input will have waited too long."""
        times = [chain.next_overdue() for _, chain in self._chains()]
        return min((due for due in times if due is not None), default=None)

    def _shortest_wait(self) -> float:
        """After so many seconds the first input that is sent from now on may be overdue."""
        return min((chain.straggler_seconds for _, chain in self._chains()), default=0.0)
