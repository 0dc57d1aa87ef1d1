"""Carries records, acknowledgements and watermarks between this worker and the others.

A production for an interval that is not here goes to a `Remote`, which stands in the place of the
interval and keeps what is not acknowledged. The courier sends it when the owner is known and
reached, and again, from the first that is not acknowledged, whenever a link comes up, an owner
changes, or the receiver says that it missed something (decision 23). Acknowledgements go back over
the link that the log's records came by. Low watermarks are told to everybody once they are stored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from millwheel.codec import apply_migrations, decode_key, leads
from millwheel.model import Delivery, record_id
from millwheel.runtime.delivery import Incoming, Outgoing, Verdict
from millwheel.runtime.frames import (
    Acknowledge,
    Deliver,
    Frame,
    Gap,
    IntervalReport,
    NotMine,
    Report,
    Row,
    Run,
    TooNew,
)
from millwheel.runtime.interval import Interval
from millwheel.runtime.network import Link, Network

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine
    from millwheel.runtime.step import Step

FRAME_RECORDS = 1000
FRAME_BYTES = 1 << 20
"""Values in one frame, at the most; a longer record has one to itself."""


class Remote:
    """An interval that somebody else owns, or nobody: the records for it wait here for their ACK."""

    is_here = False

    def __init__(self, courier: Courier, step: Step, id_: int, slots: tuple[int, int]) -> None:
        self._courier = courier
        self.step = step
        self.id = id_
        self.slots = slots
        self.owner: str | None = None
        self.sequencer = -1
        """As it was last heard of."""
        self.streams: dict[int, Outgoing] = {}
        """By log."""
        self.intake = self
        """Records are put here as into an interval's queue."""

    def append(self, delivery: Delivery[Any]) -> None:
        """One more record for it.

        What it takes on the wire must be known: a row of a source is encoded here if it was on its
        way to an interval of this worker until now.
        """
        if not delivery.encoded:
            delivery.encoded = self._courier.encode(delivery)
            delivery.size = len(delivery.encoded)
        stream = self.streams.get(delivery.log)
        if stream is None:
            stream = self.streams[delivery.log] = Outgoing()
        stream.append(delivery)
        self._courier.has_work(self)

    def insert(self, deliveries: Iterable[Delivery[Any]]) -> None:
        """Records for it that were somewhere else until now, before or between those here."""
        together = sorted((*deliveries, *self.take_out()), key=attrgetter("log", "seq"))
        for delivery in together:
            self.append(delivery)

    def belongs_to(self, owner: str | None, sequencer: int) -> None:
        """Somebody has claimed it, or nobody has any more.

        Who claims it again begins with nothing, be it the same worker.
        """
        claimed = sequencer > self.sequencer
        self.sequencer = sequencer
        if claimed or owner != self.owner:
            self.owner = owner
            self.begin()

    def begin(self) -> None:
        """Send everything anew."""
        for stream in self.streams.values():
            self._courier.begin(stream)
        self._courier.has_work(self)

    def take_out(self) -> list[Delivery[Any]]:
        """What is not acknowledged, for somebody else to keep: each log in its order."""
        streams, self.streams = self.streams, {}
        return [
            stream.unacked[seq] for stream in streams.values() for seq in sorted(stream.unacked)
        ]


class Courier:
    """The worker's end of all links. Its methods `link_up`, `link_down` and `received` are called
    by the network."""

    def __init__(self, engine: Engine, network: Network) -> None:
        self._engine = engine
        self._network = network
        self._links: dict[str, Link] = {}
        """To other workers, by id."""
        self._sources: dict[int, Link] = {}
        """By which link the records of a log last came."""
        self._incoming: dict[tuple[int, int], Incoming] = {}
        """By log and receiving interval."""
        self._numbers = itertools.count(1)
        """Of the begins of streams."""
        self._down_since: dict[str, float] = {}
        """Of the links that are not up, by the monotonic clock."""
        self._working: dict[Remote, None] = {}
        self._held_up: dict[Link, dict[Remote, None]] = {}
        """Those with more to send than a link can take now; who had his turn stands behind."""
        self._news: set[Interval] = set()
        self._flushing: asyncio.Handle | None = None
        self.refused: Counter[str] = Counter()
        """Frames that were not taken, by the reason."""
        self._told_too_new: set[str] = set()

    # -- who is there -----------------------------------------------------------------

    def meet(self, workers: dict[str, str]) -> None:
        """Have a link to each of these workers (address by id), and to no others."""
        for worker in [w for w in self._links if w not in workers]:
            self._links.pop(worker).close()
            self._down_since.pop(worker, None)
        for worker, address in workers.items():
            if worker not in self._links:
                self._links[worker] = self._network.link(worker, address)
                self._down_since[worker] = self._engine.clock.monotonic()

    def reaches(self, worker: str) -> bool:
        """Whether records can go to a worker now."""
        return worker in self._links and worker not in self._down_since

    def unreached(self) -> list[str]:
        """Workers that were called in vain for as long as a lease: if they live, they and this one
        cannot share the pipeline."""
        until = self._engine.clock.monotonic() - self._engine.settings.lease_seconds
        return [worker for worker, since in self._down_since.items() if since <= until]

    def link_up(self, link: Link) -> None:
        """Tell a worker that came (back) what it may have missed."""
        if not link.outgoing:
            return
        self._down_since.pop(link.peer, None)
        for remote in self._engine.neighbours.remotes():
            if remote.owner == link.peer:
                remote.begin()
        if self._engine.intervals:
            link.send(Report([_reported(interval) for interval in self._engine.intervals]))

    def link_down(self, link: Link, reason: str) -> None:
        """What was on its way is sent again when the link is up again."""
        self._held_up.pop(link, None)
        if self._links.get(link.peer) is link:
            self._down_since[link.peer] = self._engine.clock.monotonic()
        for log in [log for log, source in self._sources.items() if source is link]:
            del self._sources[log]

    def link_drained(self, link: Link) -> None:
        """What had to wait can go on."""
        for remote in self._held_up.pop(link, ()):
            self.has_work(remote)

    # -- sending ----------------------------------------------------------------------

    def has_work(self, remote: Remote) -> None:
        """There are records for an interval of another worker."""
        self._working[remote] = None
        self._soon()

    def begin(self, stream: Outgoing) -> None:
        """Send a stream of records anew, above everything this worker has sent before."""
        stream.begin(next(self._numbers))

    def tell(self, interval: Interval) -> None:
        """The interval has stored a low watermark: others may know (I5)."""
        self._news.add(interval)
        self._soon()

    def repeat(self) -> None:
        """Say again what may have been lost on the way; called every now and then."""
        now = self._engine.clock.monotonic()
        for remote in self._engine.neighbours.remotes():
            for stream in remote.streams.values():
                if stream.is_overdue(now):
                    self.begin(stream)
                    self.has_work(remote)
        self._news.update(self._engine.intervals)
        self._soon()

    def _soon(self) -> None:
        """Send at the end of this turn of the loop, together with what comes until then."""
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        working, self._working = self._working, {}
        had_a_turn: list[tuple[Link, Remote]] = []
        for remote in working:
            link = self._links.get(remote.owner or "")
            if link is None or not link.up:
                continue  # it is sent when the owner is known and the link is up
            if link.full:
                self._hold_up(link, remote)
            elif not self._send(remote, link):
                had_a_turn.append((link, remote))
        for link, remote in had_a_turn:
            self._hold_up(link, remote)
        if self._news:
            report = Report([_reported(interval) for interval in self._news])
            for link in self._links.values():
                link.send(report)
            self._news.clear()

    def _hold_up(self, link: Link, remote: Remote) -> None:
        self._held_up.setdefault(link, {})[remote] = None

    def _send(self, remote: Remote, link: Link) -> bool:
        """Send what there is, one log after the other, as far as the link takes it.

        Returns:
            Whether that was all of it.
        """
        engine = self._engine
        for log, stream in list(remote.streams.items()):
            if link.full:
                break
            if not stream.unacked:
                continue
            found = engine.logs.get(log)
            if found is None:
                continue  # given up meanwhile: its next owner sends
            sent, owner = found
            if not stream.begun:
                self.begin(stream)
            remote.streams[log] = remote.streams.pop(log)  # to the end: the others come first then
            while not link.full:
                previous, taken = stream.take(FRAME_RECORDS, FRAME_BYTES)
                if not taken:
                    break
                link.send(
                    Deliver(
                        log, owner.sequencer, stream.begun, remote.id, remote.step.id, previous,
                        [self._row(delivery) for delivery in taken], sent.source,
                    )
                )  # fmt: skip
        return not link.full

    def encode(self, delivery: Delivery[Any]) -> bytes:
        """Its value, as others get it."""
        return self._engine.graph.streams[delivery.stream].codec.encode(delivery.value)

    def _row(self, delivery: Delivery[Any]) -> Row:
        stream = self._engine.graph.streams[delivery.stream]
        return (
            delivery.seq, delivery.stream, delivery.key_text, delivery.slot, delivery.micros,
            delivery.hold, delivery.stamp, delivery.size, delivery.id if delivery.named else b"",
            delivery.named, delivery.encoded, stream.version,
        )  # fmt: skip

    def acknowledge(self, log: int, receiver: int, seqs: Iterable[int]) -> None:
        """Tell the owner of a log, who is elsewhere, that records are durable here (I1)."""
        link = self._sources.get(log)
        if link is not None:
            link.send(Acknowledge(log, receiver, _runs(seqs)))

    # -- receiving --------------------------------------------------------------------

    def received(self, link: Link, frame: Frame) -> None:
        """A frame of another worker."""
        match frame:
            case Deliver():
                self._receive(link, frame)
            case Acknowledge():
                seqs = [seq for first, last in frame.seqs for seq in range(first, last + 1)]
                self._engine.acknowledged(frame.log, frame.receiver, seqs)
            case Report():
                self._engine.neighbours.hear(link.peer, frame.intervals)
            case NotMine():
                self._lose_owner(frame)
            case Gap():
                self._begin_anew(frame)
            case TooNew():
                self._halt(link, frame)

    def _receive(self, link: Link, frame: Deliver) -> None:
        """Records for an interval here: into its queue, in order, or refused.

        Who has not heard that it was split sends records of slots that it has no more.
        """
        interval = self._engine.holdings.held(frame.interval)
        if interval is None or not _has_slots(interval, frame.records):
            self.refused["not mine"] += 1
            link.send(NotMine(frame.log, frame.epoch, frame.interval))
            return
        if not self._can_read(frame):
            self.refused["too new"] += 1
            link.send(TooNew(frame.log, frame.epoch, frame.interval))
            return
        name = (frame.log, frame.interval)
        stream = self._incoming.get(name)
        if stream is None:
            stream = self._incoming[name] = Incoming()
        last = frame.records[-1][0]
        match stream.judge((frame.sequencer, frame.epoch), frame.previous, last):
            case Verdict.IGNORED:
                self.refused["old or a copy"] += 1
            case Verdict.GAP:
                self.refused["gap"] += 1
                link.send(Gap(frame.log, frame.epoch, frame.interval, stream.last))
            case Verdict.TAKEN:
                self._sources[frame.log] = link
                if frame.source:
                    self._engine.source_logs |= {frame.log}
                try:
                    interval.intake.extend([self._delivery(frame, row) for row in frame.records])
                except Exception as error:  # a migration failed; who starts again meets it again
                    self._engine.fail(error)
                self._engine.wake(interval)

    def _can_read(self, frame: Deliver) -> bool:
        """Whether this code knows all streams in a frame, and the versions they are sent as."""
        streams = self._engine.graph.streams
        for name, version in {(row[1], row[11]) for row in frame.records}:
            stream = streams.get(name)
            if stream is None or not leads(stream.migrations, version, stream.version):
                return False
        return True

    def _delivery(self, frame: Deliver, row: Row) -> Delivery[Any]:
        seq, name, key_text, slot, ts, hold, stamp, size, id_, named, encoded, version = row
        stream = self._engine.graph.streams[name]
        if version != stream.version:
            encoded = apply_migrations(
                encoded, version, stream.version, stream.migrations, f"stream {name!r}"
            )
        return Delivery(
            decode_key(key_text), stream.codec.decode(encoded), ts, name, key_text, slot,
            frame.receiver, hold, size, encoded, frame.log, seq, stamp,
            id_ or record_id(frame.log, seq), 0, named,
        )  # fmt: skip

    def _stream(self, frame: Gap | NotMine | TooNew) -> tuple[Remote, Outgoing] | None:
        """The stream that a receiver speaks of, unless it began anew since."""
        for remote in self._engine.neighbours.remotes():
            stream = remote.streams.get(frame.log) if remote.id == frame.interval else None
            if stream is not None and stream.begun == frame.epoch:
                return remote, stream
        return None

    def _begin_anew(self, gap: Gap) -> None:
        found = self._stream(gap)
        if found is not None and not found[1].halted:
            remote, stream = found
            self.begin(stream)
            self.has_work(remote)

    def _lose_owner(self, refusal: NotMine) -> None:
        """Who was thought to own it does not, or not yet: wait for what the store says."""
        found = self._stream(refusal)
        if found is not None:
            found[0].owner = None
            self._engine.neighbours.look_up()

    def _halt(self, link: Link, refusal: TooNew) -> None:
        """The owner's code is older than what it was sent: keep that until somebody else has it."""
        found = self._stream(refusal)
        if found is not None:
            remote, stream = found
            stream.halted = True
            if link.peer not in self._told_too_new:
                self._told_too_new.add(link.peer)
                self._engine.log.info("peer_runs_older_code", peer=link.peer, of=remote.step.name)

    def forget(self, interval: Interval) -> None:
        """An interval is not here any more: whoever sends to it begins anew, here or elsewhere."""
        for name in [name for name in self._incoming if name[1] == interval.id]:
            del self._incoming[name]
        self._news.discard(interval)

    async def close(self) -> None:
        """Say goodbye to everybody."""
        if self._flushing is not None:
            self._flushing.cancel()
        await self._network.close()


def _reported(interval: Interval) -> IntervalReport:
    percentiles = {percentile: kept.durable for percentile, kept in interval.percentiles.items()}
    return (interval.id, *interval.report(interval.durable), percentiles)


def _has_slots(interval: Interval, rows: Iterable[Row]) -> bool:
    low, high = interval.slots
    return all(low <= row[3] < high for row in rows)


def _runs(seqs: Iterable[int]) -> list[Run]:
    """Numbers as runs from the first to the last."""
    runs: list[Run] = []
    first = last = -2
    for seq in sorted(seqs):
        if seq == last + 1:
            last = seq
            continue
        if last >= 0:
            runs.append((first, last))
        first = last = seq
    if last >= 0:
        runs.append((first, last))
    return runs
