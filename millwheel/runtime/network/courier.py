"""Carries records, acknowledgements and watermarks between this worker and the others.

A production for an interval that is not here goes to a `Remote`, which stands in the place of the
interval and keeps what is not acknowledged. The courier sends it when the owner is known and
reached, and again, from the first that is not acknowledged, whenever a link comes up, an owner
changes, or the receiver says that it missed something (decision 23). A receiver that is silent is asked
first: it may be slow (decision 31). Acknowledgements go back over
the link that the log's records came by. Low watermarks are told to everybody once they are stored.

What comes over a link is believed of the owner of what it speaks of (I18, `millwheel.runtime.network.trust`):

* `Deliver` and `Ask` of the owner of the log's interval, under the sequencer that the frame names. If
  the store's last answer does not decide, nothing is taken: the store is asked, and then the peer is
  answered as if it had just asked, so that it sends again at once;
* `Acknowledge`, `Progress`, `Gap`, `NotMine` and `TooNew` of the worker that a stream is sent to and
  that owns the receiving interval, about what was sent to it and is un-ACKed;
* `Report` as `Neighbours.hear` says;
* `Loose` and `RootReport` of any worker of the pipeline, since they may come by a third one: they
  name a computation that reads the stream, and a token that is known.

A frame that no worker sends raises `PeerError`, which closes its connection, and changes nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import ge
from typing import TYPE_CHECKING, Any

import msgspec

from millwheel.addresses import cell_address
from millwheel.codec import apply_migrations, decode_key, is_key, leads, reason
from millwheel.errors import MigrationFailed, PeerError
from millwheel.model import Delivery, is_derived, record_id
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.modes.tree_roots import owner_bits
from millwheel.runtime.network.frames import (
    FRAME_INTERVALS,
    FRAME_RECORDS,
    FRAME_REPORTS,
    FRAME_RUNS,
    ID_BYTES,
    Acknowledge,
    Ask,
    Deliver,
    Frame,
    Gap,
    IntervalReport,
    Loose,
    LooseRow,
    NotMine,
    Progress,
    Report,
    RootReport,
    Row,
    Run,
    Told,
    TooNew,
)
from millwheel.runtime.network.ports import Link, Network
from millwheel.runtime.network.trust import Word
from millwheel.runtime.network.wire_stream import (
    NOTHING,
    Due,
    Incoming,
    Outgoing,
    Verdict,
    check_runs,
)

if TYPE_CHECKING:
    from millwheel.runtime.engine import Engine
    from millwheel.runtime.interval.routing import Step

FRAME_BYTES = 1 << 20
"""Values in one frame, at the most; a longer record has one to itself."""

QUESTIONS_KEPT = 10_000
"""Streams of one peer about which the store must be asked first. Any more are dropped: the peer asks
again by itself."""

QUEUED_MOST = 8
"""Times `max_unacked_records`: how many records of no log wait for a worker, or may be queued by
an interval when others send it more."""


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
            delivery.encoded = self._courier.encode(delivery)
            delivery.size = len(delivery.encoded)
        if delivery.log < 0:
            self._courier.keep_loose(self, delivery)
            return
        stream = self.streams.get(delivery.log)
        if stream is None:
            stream = self.streams[delivery.log] = Outgoing(once=self.step.node.at_most_once)
        stream.append(delivery)
        self._courier.has_work(self)

    def insert(self, deliveries: Iterable[Delivery[Any]]) -> None:
        """Records for it that were somewhere else until now, before or between those here."""
        together = sorted((*deliveries, *self.take_out()), key=in_order)
        for delivery in together:
            self.append(delivery)

    def belongs_to(self, owner: str | None, sequencer: int) -> None:
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
            self._courier.ask_first(self)

    def begin(self) -> None:
        """Send everything anew."""
        for log in list(self.streams):
            self._courier.begin(self, log)
        self._courier.has_work(self)

    def take_out(self) -> list[Delivery[Any]]:
        """What is not acknowledged, for somebody else to keep: each log in its order. What is sent
        once only, and was sent, is done with: it would be sent again."""
        for log, stream in self.streams.items():
            if numbers := stream.give_up():
                self._courier.give_up(self, log, numbers)
        streams, self.streams = self.streams, {}
        loose, self.loose = self.loose, deque()
        return [
            *(stream.unacked[seq] for stream in streams.values() for seq in sorted(stream.unacked)),
            *loose,
        ]


class Courier:
    """The worker's end of all links. Its methods `link_up`, `link_down` and `received` are called
    by the network."""

    def __init__(self, engine: Engine, network: Network) -> None:
        self._engine = engine
        self._network = network
        self._links: dict[str, Link] = {}
        """To other workers, by id."""
        self._of_tokens: dict[int, list[Link]] = {}
        """The same by what their tokens begin with."""
        self._sources: dict[int, Link] = {}
        """By which link the records of a log last came."""
        self._incoming: dict[tuple[int, int], Incoming] = {}
        """By log and receiving interval."""
        self._takers: dict[tuple[int, int], dict[int, Incoming]] = {}
        """The same by log and receiving computation, then by interval."""
        self._numbers = itertools.count(1)
        """Of the begins of streams."""
        self._down_since: dict[str, float] = {}
        """Of the links that are not up, by the monotonic clock."""
        self._working: dict[Remote, None] = {}
        self._held_up: dict[Link, dict[Remote, None]] = {}
        """Those with more to send than a link can take now; who had his turn stands behind."""
        self._news: dict[Interval, None] = {}
        self._flushing: asyncio.Handle | None = None
        self.refused: Counter[str] = Counter()
        """Frames that were not taken, by the reason."""
        self._told_too_new: set[str] = set()
        self._doubted: dict[Link, dict[tuple[int, int], tuple[int, Ask]]] = {}
        """By link, then by log and receiving interval: what a peer is asked to send again once the
        store says that it owns the log, and how many looks at the store had begun when it came."""

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
        self._of_tokens.clear()
        for worker, link in self._links.items():
            self._of_tokens.setdefault(owner_bits(worker), []).append(link)

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
        for report in _reports(self._engine.intervals):
            link.send(report)

    def link_down(self, link: Link, reason: str) -> None:
        """What was on its way is sent again when the link is up again."""
        self._held_up.pop(link, None)
        self._doubted.pop(link, None)
        if not link.outgoing:
            self._engine.neighbours.trust.forget(link.peer)
        if self._links.get(link.peer) is link:
            self._down_since[link.peer] = self._engine.clock.monotonic()
        for log in [log for log, source in self._sources.items() if source is link]:
            del self._sources[log]

    def link_refused(self, link: Link) -> None:
        """Perhaps this worker knows an earlier incarnation of the server: look at the store."""
        self._engine.neighbours.look_up()

    def link_drained(self, link: Link) -> None:
        """What had to wait can go on."""
        for remote in self._held_up.pop(link, ()):
            self.has_work(remote)

    # -- sending ----------------------------------------------------------------------

    def has_work(self, remote: Remote) -> None:
        """There are records for an interval of another worker."""
        self._working[remote] = None
        self._soon()

    def keep_loose(self, remote: Remote, delivery: Delivery[Any]) -> None:
        """Send a record of no log as soon as its owner is known and reached. If too many wait for
        that, the oldest are lost, and come again from their roots."""
        remote.loose.append(delivery)
        if len(remote.loose) > QUEUED_MOST * self._engine.settings.max_unacked_records:
            remote.loose.popleft()
            self.refused["no room"] += 1
        self.has_work(remote)

    def begin(self, remote: Remote, log: int) -> None:
        """Send a stream of records anew, above everything this worker has sent before."""
        if numbers := remote.streams[log].begin(next(self._numbers)):
            self.give_up(remote, log, numbers)

    def give_up(self, remote: Remote, log: int, numbers: list[int]) -> None:
        """Records that are sent once only, and may have arrived, are done with."""
        self._engine.acknowledged(log, remote.step.id, numbers)

    def tell(self, interval: Interval) -> None:
        """The interval has stored a low watermark: others may know (I5)."""
        self._news[interval] = None
        self._soon()

    def repeat(self) -> None:
        """Say again what may have been lost on the way, ask how far those are who say nothing; called
        every now and then."""
        now = self._engine.clock.monotonic()
        for remote in self._engine.neighbours.remotes():
            link = self._links.get(remote.owner or "")
            if link is None or not link.up:
                continue
            for log, stream in list(remote.streams.items()):
                match stream.due(now):
                    case Due.ASK:
                        self._ask(link, remote, log, stream)
                    case Due.BEGIN:
                        self.begin(remote, log)
                        self.has_work(remote)
        self._news.update(dict.fromkeys(self._engine.intervals))
        self._soon()

    def ask_first(self, remote: Remote) -> None:
        """Hold what was sent to an interval's owner until the owner says what it has of it. What was
        sent to another worker, or to none, it does not have, and could not answer for."""
        link = self._links.get(remote.owner or "")
        for log, stream in remote.streams.items():
            if stream.begun and stream.to == remote.owner:
                stream.held = True
                if link is not None:
                    self._ask(link, remote, log, stream)
        self.has_work(remote)

    def _ask(self, link: Link, remote: Remote, log: int, stream: Outgoing) -> None:
        found = self._engine.logs.get(log)
        if found is not None:
            link.send(Ask(log, found[1].sequencer, stream.begun, remote.id, stream.last))

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
        for report in _reports(self._news):
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
        if remote.loose:
            self._send_loose(remote, link)
        for log, stream in list(remote.streams.items()):
            if link.full:
                break
            if not stream.unacked:
                continue
            found = engine.logs.get(log)
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
                        log, owner.sequencer, stream.begun, remote.id, remote.step.id, previous,
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
        self._engine.lane.wake.set()  # who waited for room here may go on

    def encode(self, delivery: Delivery[Any]) -> bytes:
        """Its value, as others get it.

        Raises:
            UserCodeError: a source gave a value that is not of the stream's type. The receiver would
                take it for garbage, and close the link whenever it is sent again.
        """
        codec = self._engine.graph.streams[delivery.stream].codec
        encoded = codec.encode(delivery.value)
        codec.check(encoded, delivery.value)
        return encoded

    def _row(self, delivery: Delivery[Any]) -> Row:
        stream = self._engine.graph.streams[delivery.stream]
        return (
            delivery.seq, delivery.stream, delivery.key_text, delivery.slot, delivery.micros,
            delivery.hold, delivery.stamp, delivery.size,
            delivery.id if delivery.named or is_derived(delivery.id) else b"",
            delivery.named, delivery.encoded, stream.version, delivery.origin,
        )  # fmt: skip

    def acknowledge(self, log: int, receiver: int, seqs: Iterable[int]) -> None:
        """Tell the owner of a log, who is elsewhere, that records are durable here (I1)."""
        seqs = list(seqs)
        for stream in self._takers.get((log, receiver), {}).values():
            stream.acknowledge(seqs)
        link = self._sources.get(log)
        if link is not None:
            runs = _runs(seqs)
            for first in range(0, len(runs), FRAME_RUNS):
                link.send(Acknowledge(log, receiver, runs[first : first + FRAME_RUNS]))

    def report(self, owner: int, told: list[Told]) -> None:
        """Tell the worker whose tokens begin so, if it is another, what became of records of no
        log. What is not heard is asked for by a replay."""
        for link in self._of_tokens.get(owner, ()):
            for first in range(0, len(told), FRAME_REPORTS):
                link.send(RootReport(told[first : first + FRAME_REPORTS]))

    # -- receiving --------------------------------------------------------------------

    def received(self, link: Link, frame: Frame) -> None:
        """A frame of another worker.

        Raises:
            PeerError: no worker sends such a frame.
        """
        match frame:
            case Deliver():
                self._receive(link, frame)
            case Acknowledge():
                self._take_acknowledgement(link, frame)
            case Ask():
                self._answer(link, frame)
            case Progress():
                self._take_progress(link, frame)
            case Report():
                self._engine.neighbours.hear(link.peer, frame.intervals)
            case NotMine():
                self._lose_owner(link, frame)
            case Gap():
                self._begin_anew(link, frame)
            case TooNew():
                self._halt(link, frame)
            case Loose():
                self._receive_loose(link, frame)
            case RootReport():
                if self._knows(link):
                    self._engine.stretches.hear(frame.told)

    def _receive(self, link: Link, frame: Deliver) -> None:
        """Records for an interval here: into its queue, in order, or refused.

        A sender that has not heard that it was split sends records of slots that it has no more.
        """
        seqs = [row[0] for row in frame.records]
        interval = self._engine.holdings.held(frame.interval)
        if interval is None or not _has_slots(interval, frame.records):
            self.refused["not mine"] += 1
            link.send(NotMine(frame.log, frame.epoch, frame.interval))
            return
        if frame.receiver != interval.step.id:
            raise PeerError(
                f"records for computation {frame.receiver} and interval {frame.interval}, which is "
                f"one of computation {interval.step.id}"
            )
        if not frame.previous < seqs[0] or any(map(ge, seqs, islice(seqs, 1, None))):
            raise PeerError(f"records of log {frame.log} whose numbers do not ascend")
        deliveries = [self._delivery(frame.log, interval.step, row) for row in frame.records]
        question = Ask(frame.log, frame.sequencer, frame.epoch, frame.interval, seqs[-1])
        if not self._believes(link, question):
            return
        if not self._can_read(link, interval.step, frame.records):
            self.refused["too new"] += 1
            link.send(TooNew(frame.log, frame.epoch, frame.interval))
            return
        if not self._migrate(deliveries, frame.records):
            return
        name = (frame.log, frame.interval)
        stream = self._incoming.get(name)
        if stream is None:
            stream = self._incoming[name] = Incoming()
            self._takers.setdefault((frame.log, frame.receiver), {})[frame.interval] = stream
        match stream.judge((frame.sequencer, frame.epoch), frame.previous, seqs):
            case Verdict.IGNORED:
                self.refused["old or a copy"] += 1
            case Verdict.GAP:
                self.refused["gap"] += 1
                link.send(Gap(frame.log, frame.epoch, frame.interval, stream.last))
            case Verdict.TAKEN:
                self._sources[frame.log] = link
                interval.intake.extend(deliveries)
                interval.wake()

    def _believes(self, link: Link, question: Ask) -> bool:
        """Whether a peer owns a log of which it sends or asks something.

        If the store's last answer does not say so, the store is asked, and the question is answered
        then. If the store names the peer though the log is sent from here, this worker has lost it
        and does not know it yet; what is taken would be acknowledged to this worker itself. The next
        commit tells, and the peer asks again.
        """
        trust = self._engine.neighbours.trust
        word = trust.sends(link.peer, question.log, question.sequencer)
        if word is Word.TRUE:
            here = self._engine.logs.get(question.log)
            if here is None:
                return True
            self.refused["sent from here"] += 1
            here[1].touch(urgent=True)
        elif word is Word.FALSE:
            self.refused["old or a copy"] += 1
        else:
            self.refused["not known to own it"] += 1
            self._doubt(link, question, trust.looks)
        return False

    def _knows(self, link: Link) -> bool:
        """Whether a peer is a worker of the pipeline; one that has just joined is after the next look
        at the store."""
        neighbours = self._engine.neighbours
        if neighbours.trust.knows(link.peer):
            return True
        neighbours.look_up()
        return False

    def _doubt(self, link: Link, question: Ask, looks: int) -> None:
        """Ask the store before a peer is believed, and answer the peer then."""
        doubted = self._doubted.setdefault(link, {})
        stream = (question.log, question.interval)
        if stream in doubted or len(doubted) < QUESTIONS_KEPT:
            doubted[stream] = (looks, question)
        self._engine.neighbours.look_up()

    def reconsider(self) -> None:
        """The store has answered: answer those whose questions had to wait for that."""
        trust = self._engine.neighbours.trust
        doubted, self._doubted = self._doubted, {}
        for link, questions in doubted.items():
            for looks, question in questions.values():
                if trust.sends(link.peer, question.log, question.sequencer) is not Word.NEW:
                    self._answer(link, question)
                elif not trust.is_settled(looks):
                    self._doubt(link, question, looks)

    def _answer(self, link: Link, question: Ask) -> None:
        """Tell a sender whether all is here that it has sent, and how much of it is durable."""
        log, epoch, interval = question.log, question.epoch, question.interval
        if self._engine.holdings.held(interval) is None:
            if self._engine.holdings.knows(interval):
                self._put_off(link, question)
            else:
                link.send(NotMine(log, epoch, interval))
            return
        if not self._believes(link, question):
            return
        stream = self._incoming.get((log, interval))
        if stream is None:
            link.send(Gap(log, epoch, interval, NOTHING))
            return
        match stream.judge_question((question.sequencer, epoch), question.last):
            case Verdict.TAKEN:
                self._sources[log] = link
                link.send(Progress(log, epoch, interval, stream.done, takes=True))
            case Verdict.GAP:
                link.send(Gap(log, epoch, interval, stream.last))

    def _put_off(self, link: Link, question: Ask) -> None:
        """The interval is on its way out: until it is gone nobody needs to send anything."""
        log, epoch, interval = question.log, question.epoch, question.interval
        stream, done = self._incoming.get((log, interval)), 0
        if stream is not None and stream.epoch == (question.sequencer, epoch):
            done = stream.done
        link.send(Progress(log, epoch, interval, done, takes=False))

    def _receive_loose(self, link: Link, frame: Loose) -> None:
        """Records of no log: what cannot be taken is dropped, and comes again from its root.

        They may come by a worker that has passed them on, so no owner is asked for: the peer must be
        a worker of the pipeline, and the computation must read the stream.
        """
        engine = self._engine
        step = engine.steps.get(frame.receiver)
        if not self._knows(link) or step is None:
            self.refused["loose"] += len(frame.records)
            return
        rows = [row for _, row in frame.records]
        if not all(row[8] for row in rows):
            raise PeerError("a record of no log that has no id")
        found = [self._delivery(-token, step, row) for token, row in frame.records]
        if not self._can_read(link, step, rows):
            self.refused["too new"] += 1
        elif self._migrate(found, rows):
            self.refused["loose"] += engine.stretches.receive(step, found, link.peer)

    def _can_read(self, link: Link, step: Step, rows: Iterable[Row]) -> bool:
        """Whether this code knows the streams in a frame as ones that the computation reads, and the
        versions they are sent as. If not, the peer's code is of another generation.

        Raises:
            PeerError: it is of the same one.
        """
        streams = self._engine.graph.streams
        for name, version in {(row[1], row[11]) for row in rows}:
            stream = streams.get(name) if name in step.codecs else None
            if stream is None or not leads(stream.migrations, version, stream.version):
                if self._engine.neighbours.trust.generation(link.peer) == self._engine.generation:
                    raise PeerError(
                        f"records of version {version} of stream {name[:100]!r} for {step.name!r}, "
                        f"which no code of generation {self._engine.generation} sends"
                    )
                return False
        return True

    def _delivery(self, log: int, step: Step, row: Row) -> Delivery[Any]:
        """A record of a frame; its value is still to be migrated if it is of another version.

        Raises:
            PeerError: no worker sends such a record.
        """
        seq, name, key_text, slot, ts, hold, stamp, _, id_, named, encoded, version, origin = row
        if id_ and len(id_) != ID_BYTES:
            raise PeerError(f"a record of stream {name[:100]!r} whose id has {len(id_)} bytes")
        try:
            key = decode_key(key_text)
        except Exception as error:
            raise PeerError(
                f"a record of stream {name[:100]!r} with the key {key_text[:100]!r}: "
                f"{reason(error)[:200]}"
            ) from error
        if not is_key(key) and not _is_cell(step, key_text, slot):
            raise PeerError(
                f"a record of stream {name[:100]!r} with the key {key_text[:100]!r}, which is no "
                "str, int or tuple of these"
            )
        stream = self._engine.graph.streams.get(name)
        try:
            if stream is not None and version == stream.version:
                value = stream.codec.decode(encoded)
            else:
                value = msgspec.json.decode(encoded)
        except Exception as error:
            raise PeerError(
                f"a record of stream {name[:100]!r} with the value {encoded[:100]!r}: "
                f"{reason(error)[:200]}"
            ) from error
        return Delivery(
            key, value, ts, name, key_text, slot, step.id, hold, len(encoded), encoded, log, seq,
            stamp, id_ or record_id(log, seq), 0, named, origin,
        )  # fmt: skip

    def _migrate(self, deliveries: list[Delivery[Any]], rows: Iterable[Row]) -> bool:
        """Bring values of other versions up to date. If a migration fails the worker stops: the peer
        is not at fault, and a worker that starts again with this code meets the same record.

        Returns:
            Whether all values are of this code's versions.
        """
        for delivery, row in zip(deliveries, rows, strict=True):
            stream, version = self._engine.graph.streams[delivery.stream], row[11]
            if version == stream.version:
                continue
            what = f"stream {stream.name!r}, key {delivery.key_text.decode()}"
            decode = stream.codec.decode
            try:
                delivery.encoded = apply_migrations(
                    delivery.encoded, version, stream.version, stream.migrations, what, decode
                )
            except MigrationFailed as error:
                self._engine.fail(error)
                return False
            delivery.value = decode(delivery.encoded)
        return True

    def _stream(
        self, link: Link, frame: Gap | NotMine | Progress | TooNew
    ) -> tuple[Remote, Outgoing] | None:
        """The stream that a peer speaks of, if that is sent to this peer, which is thought to own the
        interval, and has not begun again since."""
        remote = self._engine.neighbours.remote(frame.interval)
        if remote is None or remote.owner != link.peer:
            return None
        stream = remote.streams.get(frame.log)
        if stream is None or stream.to != link.peer or stream.begun != frame.epoch:
            return None
        return remote, stream

    def _take_acknowledgement(self, link: Link, frame: Acknowledge) -> None:
        """Records that were sent to a peer are durable there, with whatever intervals of the
        computation it owns."""
        check_runs(frame.seqs)
        arrived: list[int] = []
        for remote in self._engine.neighbours.remotes():
            if remote.owner != link.peer or remote.step.id != frame.receiver:
                continue
            stream = remote.streams.get(frame.log)
            if stream is not None and stream.to == link.peer:
                arrived += stream.acknowledge(frame.seqs)
        if arrived:
            self._engine.acknowledged(frame.log, frame.receiver, arrived)

    def _begin_anew(self, link: Link, gap: Gap) -> None:
        found = self._stream(link, gap)
        if found is not None and not found[1].halted:
            remote, _ = found
            self.begin(remote, gap.log)
            self.has_work(remote)

    def _take_progress(self, link: Link, answer: Progress) -> None:
        """Nothing is lost but, perhaps, the word of what is durable."""
        found = self._stream(link, answer)
        if found is not None:
            remote, stream = found
            durable = stream.progress(answer.epoch, answer.done, takes=answer.takes)
            if durable:
                self._engine.acknowledged(answer.log, remote.step.id, durable)
            self.has_work(remote)

    def _lose_owner(self, link: Link, refusal: NotMine) -> None:
        """The worker that was thought to own it does not, or not yet: wait for what the store says."""
        found = self._stream(link, refusal)
        if found is not None:
            remote = found[0]
            remote.owner, remote.refused_by = None, link.peer
            self._engine.neighbours.look_up()

    def _halt(self, link: Link, refusal: TooNew) -> None:
        """The owner's code is older than what it was sent: keep that until another worker has it."""
        found = self._stream(link, refusal)
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
        for takers in self._takers.values():
            takers.pop(interval.id, None)
        self._news.pop(interval, None)

    async def close(self) -> None:
        """Say goodbye to everybody."""
        self._drop_unsent()
        await self._network.close()

    def hang_up(self) -> None:
        """Send nothing more of what this courier holds, and end all links; others may follow."""
        self._drop_unsent()
        self._network.hang_up()

    def _drop_unsent(self) -> None:
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
    percentiles = {percentile: kept.durable for percentile, kept in interval.percentiles.items()}
    return (interval.id, *interval.report(interval.durable), percentiles)


def in_order(delivery: Delivery[Any]) -> tuple[int, int]:
    """The place of a record among others that wait: by log and number; those of no log as they
    are."""
    return (delivery.log, delivery.seq) if delivery.log >= 0 else (-1, 0)


def _is_cell(step: Step, key_text: bytes, slot: int) -> bool:
    """Whether a key is that of a cell of the computation."""
    grain = step.node.grain
    return step.node.cells > 0 and cell_address(slot // grain, grain)[1:] == (key_text, slot)


def _has_slots(interval: Interval, rows: Iterable[Row]) -> bool:
    low, high = interval.slots
    return all(low <= row[3] < high for row in rows)


def _runs(seqs: Iterable[int]) -> list[Run]:
    """Numbers as runs from the first to the last."""
    runs: list[Run] = []
    first = last = -2
    for seq in sorted(set(seqs)):
        if seq == last + 1:
            last = seq
            continue
        if last >= 0:
            runs.append((first, last))
        first = last = seq
    if last >= 0:
        runs.append((first, last))
    return runs
