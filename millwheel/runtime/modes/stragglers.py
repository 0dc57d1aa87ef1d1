"""Stragglers: inputs of weak computations that wait too long for ACKs (paper 6.1.3).

After `straggler_after` an input is *noted*: a commit stores it as seen, with its unacknowledged
productions (`millwheel.runtime.modes.ack_chain`). Then its sender waits no longer.
"""

from __future__ import annotations

import asyncio

from millwheel.core.counters import STRAGGLERS
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.modes.ack_chain import AckChain
from millwheel.runtime.process.tasks import end


class Stragglers:
    """Notes a worker's overdue inputs; its task runs only while some input may become overdue."""

    def __init__(self, env: Environment, exchange: Exchange) -> None:
        self._env = env
        self._exchange = exchange
        self._all: dict[Interval, AckChain] = {}
        self._watching: asyncio.Task[None] | None = None

    def add(self, interval: Interval, chain: AckChain) -> None:
        """Watch the inputs of an interval from now on, after a claim."""
        self._all[interval] = chain

    def watch(self) -> None:
        """Start the task if it does not run: an input was sent, and may become overdue."""
        if self._watching is None or self._watching.done():
            self._watching = self._env.spawn(self._watch(), "stragglers")

    async def stop(self) -> None:
        """Note no more inputs until `watch`, while the lane accepts no work."""
        watching, self._watching = self._watching, None
        if watching is not None:
            await end([watching])

    async def _watch(self) -> None:
        clock = self._env.clock
        while (due := self._next_overdue()) is not None:
            if (left := due - clock.monotonic()) > 0:
                await clock.sleep(min(left, self._shortest_wait()))
            now = clock.monotonic()
            for interval, chain in self._chains():
                if overdue := chain.overdue(now):
                    assert interval.lane is not None
                    work = interval.lane.open_work(interval)
                    work.items += [waiting.cause for waiting in overdue]
                    work.effects.count(STRAGGLERS, sum(len(w.outputs) for w in overdue))

    def _chains(self) -> list[tuple[Interval, AckChain]]:
        """The chains of all intervals except leaving ones: their next owners start new chains."""
        here = self._exchange.intervals
        self._all = {interval: self._all[interval] for interval in here if interval in self._all}
        return [
            (i, chain) for i, chain in self._all.items() if i.lane is not None and not i.leaving
        ]

    def _next_overdue(self) -> float | None:
        """When the next input is overdue; None: no input waits."""
        times = [chain.next_overdue() for _, chain in self._chains()]
        return min((due for due in times if due is not None), default=None)

    def _shortest_wait(self) -> float:
        """The shortest time, in seconds, after which an input that is sent now can be overdue."""
        return min((chain.straggler_seconds for _, chain in self._chains()), default=0.0)
