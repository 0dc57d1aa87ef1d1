"""The stand-in for an interval of another worker, or of none: keeps its records until their ACKs come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from millwheel.model import Delivery
from millwheel.runtime.interval.routing import Step
from millwheel.runtime.network.wire_stream import Outgoing


class RecordSender(Protocol):
    """Sends the records of stand-ins."""

    def encode(self, delivery: Delivery[Any]) -> bytes:
        """A record's value as other workers get it."""
        ...

    def keep_loose(self, remote: Remote, delivery: Delivery[Any]) -> None:
        """Send a record of no log as soon as its owner is known and reached."""

    def has_work(self, remote: Remote) -> None:
        """There are records to send."""

    def ask_first(self, remote: Remote) -> None:
        """Hold records that were sent until the owner says what it has of them."""

    def begin(self, remote: Remote, log: int) -> None:
        """Send a stream again from its first un-ACKed record."""

    def finish_sent(self, remote: Remote, log: int, numbers: list[int]) -> None:
        """Finish records that are sent only once and may have arrived."""


class Remote:
    """An interval that somebody else owns, or nobody: the records for it wait here for their ACK."""

    is_here = False

    def __init__(self, sender: RecordSender, step: Step, id_: int, slots: tuple[int, int]) -> None:
        self._sender = sender
        self.step = step
        self.id = id_
        self.slots = slots
        self.owner: str | None = None
        self.sequencer = -1
        """As it was last heard of."""
        self.refused_by: str | None = None
        """Who said last that it is not his."""
        self.streams: dict[int, Outgoing] = {}
        """By log."""
        self.intake = self
        """Records are put here as into an interval's queue."""
        self.loose: deque[Delivery[Any]] = deque()
        """Those of no log, which are forgotten when they are sent."""

    @property
    def queued(self) -> int:
        """How many records of no log wait to be sent."""
        return len(self.loose)

    def append(self, delivery: Delivery[Any]) -> None:
        """One more record for it.

        What it takes on the wire must be known: a row of a source is encoded here if it was on its
        way to an interval of this worker until now.
        """
        if not delivery.encoded:
            delivery.encoded = self._sender.encode(delivery)
            delivery.size = len(delivery.encoded)
        if delivery.log < 0:
            self._sender.keep_loose(self, delivery)
            return
        stream = self.streams.get(delivery.log)
        if stream is None:
            stream = self.streams[delivery.log] = Outgoing(once=self.step.node.at_most_once)
        stream.append(delivery)
        self._sender.has_work(self)

    def insert(self, deliveries: Iterable[Delivery[Any]]) -> None:
        """Records for it that were somewhere else until now, before or between those here."""
        together = sorted((*deliveries, *self.take_unacked()), key=in_order)
        for delivery in together:
            self.append(delivery)

    def set_owner(self, owner: str | None, sequencer: int) -> None:
        """Somebody has claimed it, or nobody has any more.

        Who claims it again begins with nothing, be it the same worker. Who has just said that it is
        not his, and has not claimed it since, is asked before all is sent to him once more.
        """
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
        """Send everything anew."""
        for log in list(self.streams):
            self._sender.begin(self, log)
        self._sender.has_work(self)

    def take_unacked(self) -> list[Delivery[Any]]:
        """What is not acknowledged, for somebody else to keep: each log in its order. What is sent
        once only, and was sent, is done with: it would be sent again."""
        for log, stream in self.streams.items():
            if numbers := stream.drop_sent():
                self._sender.finish_sent(self, log, numbers)
        streams, self.streams = self.streams, {}
        loose, self.loose = self.loose, deque()
        return [
            *(stream.unacked[seq] for stream in streams.values() for seq in sorted(stream.unacked)),
            *loose,
        ]


def in_order(delivery: Delivery[Any]) -> tuple[int, int]:
    """The place of a record among others that wait: by log and number; those of no log as they
    are."""
    return (delivery.log, delivery.seq) if delivery.log >= 0 else (-1, 0)
