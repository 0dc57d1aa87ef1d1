"""Sends records to the owners of their intervals, and low watermarks to all workers (decision 23).

A record is sent when its owner is known and the link is up, and again whenever the link comes up,
the owner changes, or the receiver reports a gap. A silent receiver is asked first: it may be slow
(decision 31).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from millwheel.core.model import Delivery
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.modes.tree_acks import QUEUED_MOST
from millwheel.runtime.network.frames import (
    FRAME_INTERVALS,
    FRAME_RECORDS,
    FRAME_REPORTS,
    Ask,
    EdgeReport,
    Loose,
    Report,
    RootReport,
)
from millwheel.runtime.network.peer_ports import Link
from millwheel.runtime.network.peers import Peers
from millwheel.runtime.network.remote import Remote
from millwheel.runtime.network.wire_records import frame_of, row_of
from millwheel.runtime.network.wire_stream import Due, Outgoing

FRAME_BYTES = 1 << 20
"""Values in one frame; a longer record has its own frame."""


class Sender:
    def __init__(
        self, env: Environment, exchange: Exchange, peers: Peers, refused: Counter[str]
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._peers = peers
        self._refused = refused
        self._remotes: dict[int, Remote] = {}
        self._numbers = itertools.count(1)
        self._ready: dict[Remote, None] = {}
        self._blocked: dict[Link, dict[Remote, None]] = {}
        """Stand-ins blocked by a full link, least recently served first."""
        self._changed: dict[Interval, None] = {}
        self._flushing: asyncio.Handle | None = None

    def use(self, remotes: dict[int, Remote]) -> None:
        """The owner of the dictionary adds and removes entries."""
        self._remotes = remotes

    def remotes(self) -> Iterable[Remote]:
        return self._remotes.values()

    def has_work(self, remote: Remote) -> None:
        self._ready[remote] = None
        self._schedule_flush()

    def keep_loose(self, remote: Remote, delivery: Delivery[Any]) -> None:
        """If too many wait, the oldest are dropped, and replayed from their roots."""
        limit = QUEUED_MOST * self._env.settings.max_unacked_records
        if not remote.keep_loose(delivery, limit):
            self._refused["no room"] += 1
        self.has_work(remote)

    def begin(self, remote: Remote, log: int) -> None:
        """Send a stream from its first un-ACKed record, in an epoch above all earlier ones of this
        worker."""
        if numbers := remote.streams[log].begin(next(self._numbers)):
            self.finish_sent(remote, log, numbers)

    def finish_sent(self, remote: Remote, log: int, numbers: list[int]) -> None:
        self._exchange.acknowledged(log, remote.step.id, numbers)

    def publish(self, interval: Interval) -> None:
        """Publish the low watermark that an interval has stored (I5)."""
        self._changed[interval] = None
        self._schedule_flush()

    def repeat(self) -> None:
        """Publish low watermarks again, since frames may be lost, and ask silent receivers for
        progress."""
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
        self._changed.update(dict.fromkeys(self._exchange.intervals))
        self._schedule_flush()

    def ask_first(self, remote: Remote) -> None:
        """Hold records until the owner answers which of them it has.

        A stream sent to another worker, or not at all, is not held: the owner cannot answer for it.
        """
        link = self._peers.link(remote.owner)
        for log, stream in remote.streams.items():
            if stream.epoch and stream.receiver == remote.owner:
                stream.held = True
                if link is not None:
                    self._ask(link, remote, log, stream)
        self.has_work(remote)

    def _ask(self, link: Link, remote: Remote, log: int, stream: Outgoing) -> None:
        found = self._exchange.logs.get(log)
        if found is not None:
            link.send(Ask(log, found[1].commits.sequencer, stream.epoch, remote.id, stream.last))

    def _schedule_flush(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        ready, self._ready = self._ready, {}
        unfinished: list[tuple[Link, Remote]] = []
        for remote in ready:
            link = self._peers.link(remote.owner)
            if link is None or not link.up:
                continue  # sent when the owner is known and the link is up
            if link.full:
                self._block(link, remote)
            elif not self._send(remote, link):
                unfinished.append((link, remote))
        for link, remote in unfinished:
            self._block(link, remote)
        for report in _reports(self._changed):
            for link in self._peers.links():
                link.send(report)
        self._changed.clear()

    def _block(self, link: Link, remote: Remote) -> None:
        self._blocked.setdefault(link, {})[remote] = None

    def _send(self, remote: Remote, link: Link) -> bool:
        """Whether all records were sent; false: the link is full."""
        if remote.queued:
            self._send_loose(remote, link)
        for logs in _in_turn(remote, self._exchange.logs):
            if link.full:
                break
            for log in logs:
                if not self._send_log(remote, link, log):
                    break  # newer logs of the interval follow this one
        return not link.full

    def _send_log(self, remote: Remote, link: Link, log: int) -> bool:
        stream, (_, owner) = remote.streams[log], self._exchange.logs[log]
        if not stream.epoch:
            self.begin(remote, log)
        stream.set_receiver(link.peer)
        while not link.full:
            previous, taken = stream.take(FRAME_RECORDS, FRAME_BYTES)
            if not taken:
                break
            sequencer = owner.commits.sequencer
            header = log, sequencer, stream.epoch, remote.id, remote.step.id, previous
            link.send(frame_of(header, taken, self._env.graph.streams))
        return stream.is_sent

    def _send_loose(self, remote: Remote, link: Link) -> None:
        while not link.full and (taken := remote.take_loose(FRAME_RECORDS, FRAME_BYTES)):
            streams = self._env.graph.streams
            link.send(Loose(remote.step.id, [(d.token, row_of(d, streams)) for d in taken]))
        self._exchange.wake.set()  # wake intervals that wait for room in this queue

    def encode(self, delivery: Delivery[Any]) -> bytes:
        """`UserCodeError` if a source's value is not of the stream's type: the receiver would close
        the link as garbage each time."""
        codec = self._env.graph.streams[delivery.stream].codec
        encoded = codec.encode(delivery.value)
        codec.check(encoded, delivery.value)
        return encoded

    def report(self, owner: int, reports: list[EdgeReport]) -> None:
        """A lost report is harmless: it causes a replay."""
        for link in self._peers.of_token(owner):
            for first in range(0, len(reports), FRAME_REPORTS):
                link.send(RootReport(reports[first : first + FRAME_REPORTS]))

    def link_up(self, link: Link) -> None:
        for remote in self.remotes():
            if remote.owner == link.peer:
                remote.begin()
        for report in _reports(self._exchange.intervals):
            link.send(report)

    def link_down(self, link: Link) -> None:
        """All records are sent again when the link is up."""
        self._blocked.pop(link, None)

    def link_drained(self, link: Link) -> None:
        for remote in self._blocked.pop(link, ()):
            self.has_work(remote)

    def forget(self, interval: Interval) -> None:
        self._changed.pop(interval, None)

    def drop_unsent(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()


def _in_turn(remote: Remote, logs: Mapping[int, tuple[SentLog, Interval]]) -> Iterator[list[int]]:
    """Logs with un-ACKed records, those of each sending interval together; intervals that were just
    served come last."""
    found: dict[int, list[int]] = {}
    for log, stream in remote.streams.items():
        of = logs.get(log)
        if stream.unacked and of is not None:  # otherwise the log is lost: its next owner sends
            found.setdefault(of[1].id, []).append(log)
    for together in found.values():
        together.sort()
        yield together
        for log in together:
            remote.streams[log] = remote.streams.pop(log)


def _reports(intervals: Iterable[Interval]) -> Iterator[Report]:
    reports = [
        (interval.id, *interval.report(interval.watermarks.durable)) for interval in intervals
    ]
    for first in range(0, len(reports), FRAME_INTERVALS):
        yield Report(reports[first : first + FRAME_INTERVALS])
