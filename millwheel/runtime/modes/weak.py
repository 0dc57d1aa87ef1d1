"""The weak mode: productions are sent as soon as they are made (paper 6.1.3, decision 29)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millwheel.core.effects import Effects
from millwheel.core.model import Delivery
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.mode import Mode
from millwheel.runtime.interval.work import IntervalWork, Item
from millwheel.runtime.keys.map_entries import Change
from millwheel.runtime.modes.ack_chain import AckChain
from millwheel.runtime.modes.stragglers import Stragglers
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit


class Weak(Mode):
    """Sends productions at once; acknowledges an input when all its productions are
    acknowledged."""

    is_strong = False
    may_keep_work = True

    def __init__(
        self, env: Environment, exchange: Exchange, stragglers: Stragglers, interval: Interval
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._stragglers = stragglers
        self._interval = interval
        self.chain: AckChain

    def begin(self, claim: Claim) -> None:
        interval = self._interval
        self.chain = AckChain(interval.logs, interval.step.node.straggler_seconds)
        self._stragglers.add(interval, self.chain)

    def start_over(self) -> None:
        self.chain.clear()

    def resume(self) -> None:
        self._stragglers.watch()

    def decided(self, items: list[Item], effects: Effects, changes: list[Change]) -> bool:
        interval = self._interval
        noted = bool(changes or interval.timers.firings) or effects.are_stored()
        inputs = [item for item in items if type(item) is Delivery]
        interval.workload.decided_bytes += sum(output.size for _, output in effects.caused)
        if self._bypasses_chain(inputs, effects, noted=noted):
            return False
        noted = noted or self._is_entry
        caused, effects.caused = effects.caused, []
        finished = self.chain.send(
            inputs,
            caused,
            promised=interval.watermarks.promised,
            now=self._env.clock.monotonic(),
            stamp=self._env.stamps.last,
            noted=noted,
        )
        if caused:
            interval.sent_before += len(caused)
            self._exchange.send([output for _, output in caused])
            if not noted:
                self._stragglers.watch()
        if finished:
            self._exchange.finish(interval, finished)
        return noted

    _is_entry = False
    """The inputs never wait for ACKs in the chain: the tree tracks them, or a commit notes them."""

    def _bypasses_chain(
        self, inputs: list[Delivery[Any]], effects: Effects, *, noted: bool
    ) -> bool:
        """Send the productions and track the inputs without the chain; False: use the chain."""
        return False

    def join(self, commit: Commit, work: IntervalWork, stamp: int) -> None:
        """Store the unacknowledged productions of noted inputs."""
        stragglers = self.chain.stragglers(work.items)
        self._interval.log.stored(stragglers)
        commit.stragglers += stragglers

    def take_passed(self) -> int:
        return self.chain.take_passed()

    def durable(self, work: IntervalWork) -> None:
        self.chain.stored(work.items)

    def arrived(self, seqs: Iterable[int]) -> list[Delivery[Any]]:
        return self.chain.arrived(seqs)
