"""The tree mode: weak productions without a log, tracked at the entry of their root record
(decision 32)."""

from __future__ import annotations

from typing import Any

from millwheel.core.counters import REPLAYS
from millwheel.core.effects import Effects
from millwheel.core.model import Delivery
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.modes.stragglers import Stragglers
from millwheel.runtime.modes.tree_acks import TreeAcks, may_pass_on
from millwheel.runtime.modes.tree_roots import Entry
from millwheel.runtime.modes.weak import Weak


class Tree(Weak):
    """Sends productions without a log, unless their input has stored effects."""

    _is_entry = True

    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        stragglers: Stragglers,
        acks: TreeAcks,
        interval: Interval,
    ) -> None:
        super().__init__(env, exchange, stragglers, interval)
        self._acks = acks
        routes = interval.step.routes.values()
        readers = {reader.step.id: reader.step for route in routes for reader in route.readers}
        replay_seconds = interval.step.node.replay_seconds
        self.entry = Entry(interval, replay_seconds, readers.values(), self._finish)
        """Tracks the records that enter the stretch at this interval."""

    def start_over(self) -> None:
        super().start_over()
        self._acks.roots.forget(self.entry)

    def has_room(self) -> bool:
        return self.entry.has_room(self._env.settings.max_unacked_records)

    def awaits_room_of(self, reader: int) -> bool:
        return any(step.id == reader for step in self.entry.readers)

    def _bypasses_chain(
        self, inputs: list[Delivery[Any]], effects: Effects, *, noted: bool
    ) -> bool:
        if noted or not may_pass_on(effects.caused):
            self.entry.noted(item.id for item in inputs)
            return False
        caused, effects.caused = effects.caused, []
        self._interval.sent_before += len(caused)
        passed, finished = self._acks.pass_on(self.entry, inputs, caused)
        if passed:
            self._release(passed)
        if finished:
            self._finish(finished)
        return True

    def _finish(self, causes: list[Delivery[Any]]) -> None:
        """Acknowledge inputs: the effects of all their descendants are durable elsewhere."""
        self.chain.passed += len(causes)
        self._exchange.finish(self._interval, causes)

    def _release(self, passed: list[Delivery[Any]]) -> None:
        """Forget inputs after their productions were sent.

        A copy that has joined such an input is not forgotten: it runs on its own, since its
        productions have other edges, which nothing has reported for its tree.
        """
        interval = self._interval
        self.chain.passed += len(passed)
        dedup = interval.dedup
        copies = [copy for item in passed for copy in dedup.take_out(item.id)[1:]]
        if copies:
            interval.intake.put_first(copies)
        interval.workload.records += len(passed)
        self._env.processed += len(passed)
        interval.touch(urgent=False)

    def take_events(self) -> dict[str, int]:
        replayed = self.entry.take_replayed()
        return {REPLAYS: replayed} if replayed else {}
