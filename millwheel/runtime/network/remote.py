"""Stands in for an interval that this worker does not own: keeps its records until their ACKs
arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from millwheel.core.chunk import Chunk
from millwheel.core.model import Delivery
from millwheel.runtime.interval.step import Step
from millwheel.runtime.network.wire_stream import Outgoing


class RecordSender(Protocol):
    def encode(self, delivery: Delivery[Any]) -> bytes: ...

    def keep_loose(self, remote: Remote, delivery: Delivery[Any]) -> None:
        """Send a record of no log as soon as its owner is known and the link is up."""

    def has_work(self, remote: Remote) -> None: ...

    def ask_first(self, remote: Remote) -> None:
        """Hold sent records until the owner answers which of them it has."""

    def begin(self, remote: Remote, log: int) -> None: ...

    def finish_sent(self, remote: Remote, log: int, numbers: list[int]) -> None:
        """Finish records that are sent at most once and may have arrived."""


class Remote:
    is_here = False

    def __init__(self, sender: RecordSender, step: Step, id_: int, slots: tuple[int, int]) -> None:
        self._sender = sender
        self.step = step
        self.id = id_
        self.slots = slots
        self.owner: str | None = None
        self.sequencer = -1
        self.refused_by: str | None = None
        """The worker that last answered `NotMine`."""
        self.streams: dict[int, Outgoing] = {}
        self.intake = self
        """The stand-in itself: an interval has an intake, too."""
        self.loose: deque[Delivery[Any]] = deque()

    @property
    def queued(self) -> int:
        return len(self.loose)

    def keep_loose(self, delivery: Delivery[Any], limit: int) -> bool:
        """Returns false if the oldest record was dropped for it, as `limit` were kept."""
        self.loose.append(delivery)
        if len(self.loose) <= limit:
            return True
        self.loose.popleft()
        return False

    def take_loose(self, records: int, size: int) -> list[Delivery[Any]]:
        taken: list[Delivery[Any]] = []
        while self.loose and len(taken) < records:
            size -= self.loose[0].size
            if taken and size < 0:
                break
            taken.append(self.loose.popleft())
        return taken

    def append(self, item: Chunk | Delivery[Any]) -> None:
        """A single row that a source sent to an own interval is encoded here: the source may have
        given JSON in another form. The rows of a chunk are encoded when it is cut."""
        if not isinstance(item, Chunk):
            if not item.encoded or item.log == item.origin:
                item.encoded = self._sender.encode(item)
                item.size = len(item.encoded)
            if item.in_tree:
                self._sender.keep_loose(self, item)
                return
        stream = self.streams.get(item.log)
        if stream is None:
            stream = self.streams[item.log] = Outgoing(once=self.step.node.at_most_once)
        stream.append(item)
        self._sender.has_work(self)

    def insert(self, deliveries: Iterable[Delivery[Any]]) -> None:
        together = sorted((*deliveries, *self.take_unacked()), key=in_order)
        for delivery in together:
            self.append(delivery)

    def set_owner(self, owner: str | None, sequencer: int) -> None:
        """A new claim starts with an empty receiver, even on the same worker. After `NotMine`
        without a new claim, ask before resending."""
        claimed = sequencer > self.sequencer
        self.sequencer = sequencer
        if not claimed and owner == self.owner:
            return
        self.owner = owner
        if claimed or owner is None or owner != self.refused_by:
            self.begin()
        else:
            self._sender.ask_first(self)

    def begin(self) -> None:
        for log in list(self.streams):
            self._sender.begin(self, log)
        self._sender.has_work(self)

    def take_unacked(self) -> list[Delivery[Any]]:
        """Remove and return all un-ACKed records, each log in its order.

        Sent records that are sent at most once are finished instead: the next stand-in would send
        them again.
        """
        for log, stream in self.streams.items():
            if numbers := stream.drop_sent():
                self._sender.finish_sent(self, log, numbers)
        streams, self.streams = self.streams, {}
        loose, self.loose = self.loose, deque()
        return [*(record for stream in streams.values() for record in stream.left()), *loose]


def in_order(delivery: Delivery[Any]) -> tuple[int, int]:
    return (-1, 0) if delivery.in_tree else (delivery.log, delivery.seq)
