"""Acknowledgement by trees: passes records on, reports, and replays what is lost (decision 32).

A delivery in a stretch has ``log = -token`` and ``seq = edge``. It is in nobody's log: who sends it
forgets it. A tree computation that has run one says so at once, with the edges of what it passed
on; whoever makes its effects durable says so by `Exchange.acknowledge`, like of any delivery::

    from outside ──entry runs──▶ root ──every edge told──▶ landed: acknowledged upstream
                                  │  ▲
               silent for too long▼  │runs again, with another token
                                queued

Reports go to the worker whose token it is. All of one turn of the loop go together, those of one
token as one number. In every period each worker also tells the tokens of what it has in its hands:
in queues, running, waiting for a commit or a link. A root that is told of is not lost, however slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from millwheel.model import Delivery
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.routing import Step
from millwheel.runtime.modes.ack_chain import Caused
from millwheel.runtime.modes.tree_roots import Entry, Roots, edge_of, owner_bits, owner_of
from millwheel.runtime.process.service import Service

QUEUED_MOST = 8
"""Times `max_unacked_records`: records of no log that wait for a worker, or that an interval queues
when other workers send it more."""

REPORTS_PER_PATIENCE = 4
"""How often it is told that something is in good hands, in the shortest `replay_after`."""

SHORTEST_PERIOD_SECONDS = 0.01


class TreePeers(Protocol):
    """The way to other workers."""

    def report(self, owner: int, told: list[tuple[int, int]]) -> None:
        """Send reports of trees to the worker whose tokens begin with `owner`."""

    def waiting(self) -> Iterator[int]:
        """The logs of records of no log that wait for a link."""
        ...


class TreeAcks(Service):
    """A worker's part in all stretches."""

    def __init__(self, env: Environment, exchange: Exchange) -> None:
        nodes = [node for node in env.graph.nodes if node.is_tree]
        shortest = min((node.replay_seconds for node in nodes), default=float("inf"))
        period = min(env.settings.housekeeping_seconds, shortest / REPORTS_PER_PATIENCE)
        super().__init__(env.clock, max(period, SHORTEST_PERIOD_SECONDS))
        self._env = env
        self._exchange = exchange
        self.peers: TreePeers | None = None
        """The other workers; None: there are none."""
        self.roots = Roots(env.worker)
        self._owner = owner_bits(env.worker)
        self._told: dict[int, int] = {}
        """What is to be reported: XOR by token."""
        self._flushing: asyncio.Handle | None = None
        self._receivers: set[int] = set()
        """Computations that get deliveries of a stretch, as far as this worker has seen."""
        self._attention = 0.0
        """Seconds for which this worker has listened: one that stood still heard nothing."""
        self._last = env.clock.monotonic()

    # -- records ------------------------------------------------------------------------

    def pass_on(
        self, entry: Entry, inputs: Sequence[Delivery[Any]], caused: Sequence[Caused]
    ) -> tuple[list[Delivery[Any]], list[Delivery[Any]]]:
        """Send what has come of some inputs of a tree computation, and nothing else has.

        Returns:
            The inputs from inside the stretch, which are forgotten here, and those of which nothing
            came, which are finished.
        """
        outputs: dict[int, list[Delivery[Any]]] = {}
        for cause, output in caused:
            outputs.setdefault(id(cause), []).append(output)
        passed: list[Delivery[Any]] = []
        finished: list[Delivery[Any]] = []
        for item in inputs:
            came = outputs.get(id(item))
            if not came:
                finished.append(item)
                continue
            inside = item.log < 0
            token = -item.log if inside else self.roots.next_token()
            xor = 0
            for output in came:
                output.log = -token
                output.seq = edge = edge_of(output.id, token, output.receiver)
                xor ^= edge
                self._receivers.add(output.receiver)
            if inside:
                self.tell(token, item.seq ^ xor)
                passed.append(item)
            else:
                self.roots.begin(token, entry, item, xor, self._attention)
        self._exchange.send([output for _, output in caused])
        return passed, finished

    def receive(self, step: Step, deliveries: Iterable[Delivery[Any]], peer: str) -> int:
        """Take deliveries of another worker, each to the interval that has its slot, be it on its
        way here or from here; but none back to who thinks that it is here.

        Returns:
            How many were not taken: nobody knows better where to, or too many are queued.
        """
        self._receivers.add(step.id)
        most = QUEUED_MOST * self._env.settings.max_unacked_records
        left = 0
        for delivery in deliveries:
            found = step.interval_of(delivery.slot) if step.destinations else None
            if found is None or found.queued >= most or getattr(found, "owner", None) == peer:
                left += 1
            else:
                found.intake.append(delivery)
        self._exchange.wake.set()
        return left

    # -- reports ------------------------------------------------------------------------

    def tell(self, token: int, xor: int) -> None:
        """Report some edges of a tree, or with XOR 0 that something of it is in good hands."""
        self._told[token] = self._told.get(token, 0) ^ xor
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        told, self._told = self._told, {}
        by_owner: dict[int, list[tuple[int, int]]] = {}
        for report in told.items():
            by_owner.setdefault(owner_of(report[0]), []).append(report)
        for owner, reports in by_owner.items():
            if self.peers is not None:
                self.peers.report(owner, reports)
            if owner == self._owner:
                self.hear(reports)

    def hear(self, reports: Iterable[tuple[int, int]]) -> None:
        """Reports, of this worker or another one; those of roots that are elsewhere say nothing."""
        finished: dict[Entry, list[Delivery[Any]]] = {}
        hear, now = self.roots.hear, self._attention
        for token, xor in reports:
            root = hear(token, xor, now)
            if root is not None:
                finished.setdefault(root.entry, []).append(root.cause)
        for entry, causes in finished.items():
            entry.finish(causes)
        self._exchange.wake.set()  # who waited for roots or for room in a queue may go on

    def close(self) -> None:
        """Say nothing more."""
        if self._flushing is not None:
            self._flushing.cancel()

    # -- again and again ----------------------------------------------------------------

    async def run_once(self) -> None:
        """Tell what is in good hands here, and let run again what must be lost."""
        now = self._clock.monotonic()
        self._attention += min(now - self._last, 2 * self._period)
        self._last = now
        if self._receivers:
            for token in {-log for log in self._in_hand()}:
                self.tell(token, 0)
            if self._flushing is not None:
                self._flushing.cancel()
                self._flush()  # before anybody here is taken for lost
        self._replay()

    def _in_hand(self) -> Iterator[int]:
        """The logs of deliveries of stretches that are here, acknowledged by nobody."""
        for receiver in self._receivers:
            for interval in self._exchange.of(receiver):
                yield from (d.log for d in interval.intake if d.log < 0)
                yield from (d.log for d in interval.dedup.held() if d.log < 0)
                for item in interval.dedup.sorting:
                    if type(item) is Delivery and item.log < 0:
                        yield item.log
        if self.peers is not None:
            yield from self.peers.waiting()

    def _replay(self) -> None:
        """Let roots that must have lost something run again, before what came later."""
        for root in self.roots.overdue(self._attention):
            interval = root.entry.interval
            copies = interval.dedup.take_out(root.cause.id)
            for copy in copies:
                interval.step.renew(copy)
            interval.intake.extendleft(reversed(copies))
            interval.touch(urgent=False)
            interval.wake()


def may_pass_on(caused: Iterable[Caused]) -> bool:
    """Whether outputs need no hold of their own: none is older than its input, for which its
    sender holds the low watermark."""
    return all(output.micros >= cause.micros for cause, output in caused)
