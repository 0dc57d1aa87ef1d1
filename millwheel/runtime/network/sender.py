"""Sends records to the workers that own their intervals, and low watermarks to all (decision 23).

A production for an interval that is not here goes to a `Remote`, which stands in the place of the
interval and keeps what is not acknowledged. It is sent when the owner is known and reached, and
again, from the first un-ACKed record, whenever a link comes up, an owner changes, or the receiver
says that it missed something. A receiver that is silent is asked first: it may be slow (decision 31).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from millwheel.model import Delivery, is_derived
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.modes.tree_acks import QUEUED_MOST
from millwheel.runtime.network.frames import (
    FRAME_INTERVALS,
    FRAME_RECORDS,
    FRAME_REPORTS,
    Ask,
    Deliver,
    IntervalReport,
    Loose,
    LooseRow,
    Report,
    RootReport,
    Row,
    Told,
)
from millwheel.runtime.network.peers import Peers
from millwheel.runtime.network.ports import Link
from millwheel.runtime.network.remote import Remote
from millwheel.runtime.network.wire_stream import Due, Outgoing

FRAME_BYTES = 1 << 20
"""Most bytes of values in one frame; a longer record has a frame to itself."""


class Sender:
    """Sends what stand-ins hold, as far as links take it.

    Args:
        refused: counts records that were dropped, by reason.
    """

    def __init__(
        self, env: Environment, exchange: Exchange, peers: Peers, refused: Counter[str]
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._peers = peers
        self._refused = refused
        self._remotes: dict[int, Remote] = {}
        """The stand-ins, by interval."""
        self._numbers = itertools.count(1)
        """Numbers for the begins of streams."""
        self._working: dict[Remote, None] = {}
        """Stand-ins with records to send."""
        self._held_up: dict[Link, dict[Remote, None]] = {}
        """Stand-ins blocked by a full link, least recently served first."""
        self._news: dict[Interval, None] = {}
        """Intervals whose stored low watermark is to be published."""
        self._flushing: asyncio.Handle | None = None

    def use(self, remotes: dict[int, Remote]) -> None:
        """Send what these stand-ins hold, which others add and take away."""
        self._remotes = remotes

    def remotes(self) -> Iterable[Remote]:
        """The stand-ins for intervals that are not here."""
        return self._remotes.values()

    def has_work(self, remote: Remote) -> None:
        """There are records for an interval of another worker."""
        self._working[remote] = None
        self._soon()

    def keep_loose(self, remote: Remote, delivery: Delivery[Any]) -> None:
        """Send a record of no log as soon as its owner is known and reached. If too many wait for
        that, the oldest are lost, and come again from their roots."""
        remote.loose.append(delivery)
        if len(remote.loose) > QUEUED_MOST * self._env.settings.max_unacked_records:
            remote.loose.popleft()
            self._refused["no room"] += 1
        self.has_work(remote)

    def begin(self, remote: Remote, log: int) -> None:
        """Send a stream of records anew, above everything this worker has sent before."""
        if numbers := remote.streams[log].begin(next(self._numbers)):
            self.give_up(remote, log, numbers)

    def give_up(self, remote: Remote, log: int, numbers: list[int]) -> None:
        """Records that are sent once only, and may have arrived, are done with."""
        self._exchange.acknowledged(log, remote.step.id, numbers)

    def publish(self, interval: Interval) -> None:
        """The interval has stored a low watermark: others may know (I5)."""
        self._news[interval] = None
        self._soon()

    def repeat(self) -> None:
        """Say again what may have been lost on the way, ask how far those are who say nothing; called
        every now and then."""
        now = self._env.clock.monotonic()
        for remote in self.remotes():
            link = self._peers.link(remote.owner)
            if link is None or not link.up:
                continue
            for log, stream in list(remote.streams.items()):
                match stream.due(now):
                    case Due.ASK:
                        self._ask(link, remote, log, stream)
                    case Due.BEGIN:
                        self.begin(remote, log)
                        self.has_work(remote)
        self._news.update(dict.fromkeys(self._exchange.intervals))
        self._soon()

    def ask_first(self, remote: Remote) -> None:
        """Hold what was sent to an interval's owner until the owner says what it has of it. What was
        sent to another worker, or to none, it does not have, and could not answer for."""
        link = self._peers.link(remote.owner)
        for log, stream in remote.streams.items():
            if stream.begun and stream.to == remote.owner:
                stream.held = True
                if link is not None:
                    self._ask(link, remote, log, stream)
        self.has_work(remote)

    def _ask(self, link: Link, remote: Remote, log: int, stream: Outgoing) -> None:
        found = self._exchange.logs.get(log)
        if found is not None:
            link.send(Ask(log, found[1].commits.sequencer, stream.begun, remote.id, stream.last))

    def _soon(self) -> None:
        """Send at the end of this turn of the loop, together with what comes until then."""
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        working, self._working = self._working, {}
        had_a_turn: list[tuple[Link, Remote]] = []
        for remote in working:
            link = self._peers.link(remote.owner)
            if link is None or not link.up:
                continue  # it is sent when the owner is known and the link is up
            if link.full:
                self._hold_up(link, remote)
            elif not self._send(remote, link):
                had_a_turn.append((link, remote))
        for link, remote in had_a_turn:
            self._hold_up(link, remote)
        for report in _reports(self._news):
            for link in self._peers.links():
                link.send(report)
        self._news.clear()

    def _hold_up(self, link: Link, remote: Remote) -> None:
        self._held_up.setdefault(link, {})[remote] = None

    def _send(self, remote: Remote, link: Link) -> bool:
        """Send what there is, one log after the other, as far as the link takes it.

        Returns:
            Whether that was all of it.
        """
        if remote.loose:
            self._send_loose(remote, link)
        for log, stream in list(remote.streams.items()):
            if link.full:
                break
            if not stream.unacked:
                continue
            found = self._exchange.logs.get(log)
            if found is None:
                continue  # given up meanwhile: its next owner sends
            _, owner = found
            if not stream.begun:
                self.begin(remote, log)
            stream.turn_to(link.peer)
            remote.streams[log] = remote.streams.pop(log)  # to the end: the others come first then
            while not link.full:
                previous, taken = stream.take(FRAME_RECORDS, FRAME_BYTES)
                if not taken:
                    break
                link.send(
                    Deliver(
                        log, owner.commits.sequencer, stream.begun, remote.id, remote.step.id, previous,
                        [self._row(delivery) for delivery in taken],
                    )
                )  # fmt: skip
        return not link.full

    def _send_loose(self, remote: Remote, link: Link) -> None:
        """Send records of no log, and forget them."""
        loose = remote.loose
        while loose and not link.full:
            rows: list[LooseRow] = []
            size = 0
            while loose and len(rows) < FRAME_RECORDS:
                size += loose[0].size
                if rows and size > FRAME_BYTES:
                    break
                delivery = loose.popleft()
                rows.append((-delivery.log, self._row(delivery)))
            link.send(Loose(remote.step.id, rows))
        self._exchange.wake.set()  # who waited for room here may go on

    def encode(self, delivery: Delivery[Any]) -> bytes:
        """Its value, as others get it.

        Raises:
            UserCodeError: a source gave a value that is not of the stream's type. The receiver would
                take it for garbage, and close the link whenever it is sent again.
        """
        codec = self._env.graph.streams[delivery.stream].codec
        encoded = codec.encode(delivery.value)
        codec.check(encoded, delivery.value)
        return encoded

    def _row(self, delivery: Delivery[Any]) -> Row:
        stream = self._env.graph.streams[delivery.stream]
        return (
            delivery.seq, delivery.stream, delivery.key_text, delivery.slot, delivery.micros,
            delivery.hold, delivery.stamp, delivery.size,
            delivery.id if delivery.named or is_derived(delivery.id) else b"",
            delivery.named, delivery.encoded, stream.version, delivery.origin,
        )  # fmt: skip

    def report(self, owner: int, told: list[Told]) -> None:
        """Tell the worker whose tokens begin so, if it is another, what became of records of no
        log. What is not heard is asked for by a replay."""
        for link in self._peers.of_token(owner):
            for first in range(0, len(told), FRAME_REPORTS):
                link.send(RootReport(told[first : first + FRAME_REPORTS]))

    def link_up(self, link: Link) -> None:
        """Send to a worker that came (back) what it may have missed."""
        for remote in self.remotes():
            if remote.owner == link.peer:
                remote.begin()
        for report in _reports(self._exchange.intervals):
            link.send(report)

    def link_down(self, link: Link) -> None:
        """Nothing waits for this link any longer: all is sent again when it is up."""
        self._held_up.pop(link, None)

    def link_drained(self, link: Link) -> None:
        """A link has room again: continue with the stand-ins that it has blocked."""
        for remote in self._held_up.pop(link, ()):
            self.has_work(remote)

    def forget(self, interval: Interval) -> None:
        """Publish nothing more of an interval."""
        self._news.pop(interval, None)

    def drop_unsent(self) -> None:
        """Send nothing more."""
        if self._flushing is not None:
            self._flushing.cancel()


def _reports(intervals: Iterable[Interval]) -> Iterator[Report]:
    """The stored low watermarks of some intervals, in frames that are not too long."""
    taken: list[IntervalReport] = []
    size = 0
    for interval in intervals:
        report = _reported(interval)
        size += 1 + len(report[-1])
        if taken and size > FRAME_INTERVALS:
            yield Report(taken)
            taken, size = [], 1 + len(report[-1])
        taken.append(report)
    if taken:
        yield Report(taken)


def _reported(interval: Interval) -> IntervalReport:
    percentiles = {
        percentile: kept.durable for percentile, kept in interval.watermarks.percentiles.items()
    }
    return (interval.id, *interval.report(interval.watermarks.durable), percentiles)
