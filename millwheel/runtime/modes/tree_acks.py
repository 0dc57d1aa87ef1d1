"""Acknowledgement by trees: sends records without a log, reports their edges, and replays lost ones
(decision 32).

A delivery in a stretch is an edge (`Delivery.join_tree`). Its sender forgets it. When a tree
computation has run a delivery, it reports the delivery's edge at once, together with the edges of
the outputs. A worker that makes a delivery's effects durable reports the edge by
`Exchange.acknowledge`, like the ACK of any other delivery::

    from outside ──entry runs──▶ root ──every edge reported──▶ finished: acknowledged upstream
                                  │  ▲
        no report for too long    ▼  │ runs again, with another token
                                queued

A report goes to the worker that created the token. All reports of one iteration of the event loop
are sent together, those of one token combined by XOR. In every period each worker also reports the
tokens of all deliveries that it holds (queued, running, or waiting for a commit or a link), so that
a slow root is not taken for lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from millwheel.core.model import Delivery
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.step import Step
from millwheel.runtime.modes.ack_chain import Caused
from millwheel.runtime.modes.tree_roots import Entry, Roots, edge_of, owner_bits, owner_of
from millwheel.runtime.process.service import Service

QUEUED_MOST = 8
"""Limit, in multiples of `max_unacked_records`, for the records without a log that wait to be sent
to a worker, and for the queue of an interval that receives such records from other workers."""

REPORTS_PER_PATIENCE = 4
"""Number of periods, each with reports of held deliveries, within the shortest `replay_after`."""

SHORTEST_PERIOD_SECONDS = 0.01


class TreePeers(Protocol):
    def report(self, owner: int, reports: list[tuple[int, int]]) -> None:
        """Send reports, each a token and an XOR, to the worker with the high token bits `owner`."""

    def waiting(self) -> Iterator[int]:
        """The negative tokens of deliveries without a log that wait for a link."""
        ...


class TreeAcks(Service):
    """Sends, reports and replays the deliveries of all stretches on one worker."""

    def __init__(self, env: Environment, exchange: Exchange) -> None:
        nodes = [node for node in env.graph.nodes if node.is_tree]
        shortest = min((node.replay_seconds for node in nodes), default=float("inf"))
        period = min(env.settings.housekeeping_seconds, shortest / REPORTS_PER_PATIENCE)
        super().__init__(env.clock, max(period, SHORTEST_PERIOD_SECONDS))
        self._env = env
        self._exchange = exchange
        self.peers: TreePeers | None = None
        """None: there are no other workers."""
        self.roots = Roots(env.worker)
        self._owner = owner_bits(env.worker)
        self._reports: dict[int, int] = {}
        """The reports to send: XOR by token."""
        self._flushing: asyncio.Handle | None = None
        self._receivers: set[int] = set()
        """The computations that receive deliveries of a stretch, as far as this worker has seen."""
        self._running_seconds = 0.0
        """Time in which this worker ran and could receive reports: time in which it stood still
        does not count as silence of a root."""
        self._last = env.clock.monotonic()

    # -- records ------------------------------------------------------------------------

    def pass_on(
        self, entry: Entry, inputs: Sequence[Delivery[Any]], caused: Sequence[Caused]
    ) -> tuple[list[Delivery[Any]], list[Delivery[Any]]]:
        """Send the outputs of some inputs of a tree computation, which have no other effects.

        Returns:
            The inputs from inside the stretch that have outputs, which this worker may forget, and
            the inputs without outputs, which are finished.
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
            inside = item.in_tree
            token = item.token if inside else self.roots.next_token()
            xor = 0
            for output in came:
                edge = edge_of(output.id, token, output.receiver)
                output.join_tree(token, edge)
                xor ^= edge
                self._receivers.add(output.receiver)
            if inside:
                self.report(token, item.seq ^ xor)
                passed.append(item)
            else:
                self.roots.begin(token, entry, item, xor, self._running_seconds)
        self._exchange.send([output for _, output in caused])
        return passed, finished

    def receive(self, step: Step, deliveries: Iterable[Delivery[Any]], peer: str) -> int:
        """Route deliveries of another worker to the interval of their slot, or to its stand-in, but
        not back to that worker.

        Returns:
            Number of deliveries that were dropped: no other owner is known, or the queue is full.
        """
        self._receivers.add(step.id)
        limit = QUEUED_MOST * self._env.settings.max_unacked_records
        left = 0
        for delivery in deliveries:
            found = step.interval_of(delivery.slot) if step.destinations else None
            if found is None or found.queued >= limit or getattr(found, "owner", None) == peer:
                left += 1
            else:
                found.intake.append(delivery)
        self._exchange.wake.set()
        return left

    # -- reports ------------------------------------------------------------------------

    def report(self, token: int, xor: int) -> None:
        """Report the XOR of some edges of a tree, or with XOR 0 that a delivery of it is held
        here."""
        self._reports[token] = self._reports.get(token, 0) ^ xor
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        flushed, self._reports = self._reports, {}
        by_owner: dict[int, list[tuple[int, int]]] = {}
        for report in flushed.items():
            by_owner.setdefault(owner_of(report[0]), []).append(report)
        for owner, reports in by_owner.items():
            if self.peers is not None:
                self.peers.report(owner, reports)
            if owner == self._owner:
                self.receive_reports(reports)

    def receive_reports(self, reports: Iterable[tuple[int, int]]) -> None:
        """Add reports of this or another worker to their roots, if they are tracked here, and
        finish completed roots."""
        finished: dict[Entry, list[Delivery[Any]]] = {}
        add_report, now = self.roots.add_report, self._running_seconds
        for token, xor in reports:
            root = add_report(token, xor, now)
            if root is not None:
                finished.setdefault(root.entry, []).append(root.cause)
        for entry, causes in finished.items():
            entry.finish(causes)
        self._exchange.wake.set()  # intervals that waited for roots or for room may continue

    def close(self) -> None:
        """Send no more reports."""
        if self._flushing is not None:
            self._flushing.cancel()

    # -- every period -------------------------------------------------------------------

    async def run_once(self) -> None:
        """Report the deliveries that this worker holds, and replay lost roots."""
        now = self._clock.monotonic()
        self._running_seconds += min(now - self._last, 2 * self._period)
        self._last = now
        if self._receivers:
            for token in set(self._held()):
                self.report(token, 0)
            if self._flushing is not None:
                self._flushing.cancel()
                self._flush()  # first, so that no root with a delivery here is taken for lost
        self._replay()

    def _held(self) -> Iterator[int]:
        """The tokens of all unacknowledged deliveries that this worker holds."""
        for receiver in self._receivers:
            for interval in self._exchange.of(receiver):
                yield from (d.token for d in interval.intake.singles() if d.in_tree)
                yield from (d.token for d in interval.dedup.held() if d.in_tree)
                for item in interval.dedup.sorting:
                    if type(item) is Delivery and item.in_tree:
                        yield item.token
        if self.peers is not None:
            yield from self.peers.waiting()

    def _replay(self) -> None:
        """Run the records of lost roots again, before the records that are queued now."""
        for root in self.roots.overdue(self._running_seconds):
            interval = root.entry.interval
            copies = interval.dedup.take_out(root.cause.id)
            for copy in copies:
                interval.step.renew(copy)
            interval.intake.put_first(copies)
            interval.touch(urgent=False)
            interval.wake()


def may_pass_on(caused: Iterable[Caused]) -> bool:
    """Whether outputs need no hold of their own, because none is older than its input, for which
    the input's sender holds back the low watermark."""
    return all(output.micros >= cause.micros for cause, output in caused)
