"""Takes records from other workers, and acknowledges them (decision 23).

A peer's frame counts if the store says that the peer owns what it speaks of (I18,
`millwheel.runtime.network.trust`): the log of a `Deliver` or an `Ask`, under the sequencer that the frame
names. If the store's last answer does not decide, nothing is taken: the store is asked, and then the peer is
answered as if it had just asked, so that it sends again at once. `Loose` records count of any worker of the
pipeline, since they may come by a third one: they name a computation that reads the stream.

Acknowledgements go back over the link that the log's records came by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from operator import ge
from typing import Any

import msgspec

from millwheel.addresses import cell_address
from millwheel.codec import apply_migrations, decode_key, is_key, leads, reason
from millwheel.errors import MigrationFailed, PeerError
from millwheel.model import Delivery, record_id
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.routing import Step
from millwheel.runtime.modes.tree_acks import TreeAcks
from millwheel.runtime.network.frames import (
    FRAME_RUNS,
    ID_BYTES,
    Acknowledge,
    Ask,
    Deliver,
    Gap,
    Loose,
    NotMine,
    Progress,
    RecordRow,
    Run,
    TooNew,
)
from millwheel.runtime.network.ports import Link
from millwheel.runtime.network.remote_intervals import RemoteIntervals
from millwheel.runtime.network.trust import ClaimStatus
from millwheel.runtime.network.wire_stream import NOTHING, Incoming, Verdict

QUESTIONS_KEPT = 10_000
"""Streams of one peer about which the store must be asked first. Any more are dropped: the peer asks
again by itself."""


class Receiver:
    """Takes records for intervals here.

    Args:
        refused: counts frames that were not taken, by reason.
    """

    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        trees: TreeAcks,
        remotes: RemoteIntervals,
        refused: Counter[str],
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._trees = trees
        self._remotes = remotes
        self._refused = refused
        self._ack_links: dict[int, Link] = {}
        """The link that the records of a log last came by."""
        self._incoming: dict[tuple[int, int], Incoming] = {}
        """Streams by log and receiving interval."""
        self._by_computation: dict[tuple[int, int], dict[int, Incoming]] = {}
        """The same by log and receiving computation, then by interval."""
        self._deferred: dict[Link, dict[tuple[int, int], tuple[int, Ask]]] = {}
        """By link, then by log and receiving interval: questions that wait until the store says whether
        the peer owns the log, with the number of refreshes at the store that had begun when each came."""

    def receive(self, link: Link, frame: Deliver) -> None:
        """Records for an interval here: into its queue, in order, or refused.

        A sender that has not heard that it was split sends records of slots that it has no more.
        """
        seqs = [row[0] for row in frame.records]
        interval = self._exchange.held(frame.interval)
        if interval is None or not _has_slots(interval, frame.records):
            self._refused["not mine"] += 1
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
        if not self._trusts(link, question):
            return
        if not self._can_read(link, interval.step, frame.records):
            self._refused["too new"] += 1
            link.send(TooNew(frame.log, frame.epoch, frame.interval))
            return
        if not self._migrate(deliveries, frame.records):
            return
        name = (frame.log, frame.interval)
        stream = self._incoming.get(name)
        if stream is None:
            stream = self._incoming[name] = Incoming()
            self._by_computation.setdefault((frame.log, frame.receiver), {})[frame.interval] = (
                stream
            )
        match stream.judge((frame.sequencer, frame.epoch), frame.previous, seqs):
            case Verdict.IGNORED:
                self._refused["old or a copy"] += 1
            case Verdict.GAP:
                self._refused["gap"] += 1
                link.send(Gap(frame.log, frame.epoch, frame.interval, stream.last))
            case Verdict.TAKEN:
                self._ack_links[frame.log] = link
                interval.intake.extend(deliveries)
                interval.wake()

    def _trusts(self, link: Link, question: Ask) -> bool:
        """Whether a peer owns a log of which it sends or asks something.

        If the store's last answer does not say so, the store is asked, and the question is answered
        then. If the store names the peer though the log is sent from here, this worker has lost it
        and does not know it yet; what is taken would be acknowledged to this worker itself. The next
        commit tells, and the peer asks again.
        """
        trust = self._remotes.trust
        status = trust.sends(link.peer, question.log, question.sequencer)
        if status is ClaimStatus.CONFIRMED:
            here = self._exchange.logs.get(question.log)
            if here is None:
                return True
            self._refused["sent from here"] += 1
            here[1].touch(urgent=True)
        elif status is ClaimStatus.REFUTED:
            self._refused["old or a copy"] += 1
        else:
            self._refused["not known to own it"] += 1
            self._defer(link, question, trust.refreshes)
        return False

    def knows(self, link: Link) -> bool:
        """Whether a peer is a worker of the pipeline; one that has just joined is after the next look
        at the store."""
        remotes = self._remotes
        if remotes.trust.knows(link.peer):
            return True
        remotes.request_refresh()
        return False

    def _defer(self, link: Link, question: Ask, refreshes: int) -> None:
        """Ask the store before a peer is believed, and answer the peer then."""
        deferred = self._deferred.setdefault(link, {})
        stream = (question.log, question.interval)
        if stream in deferred or len(deferred) < QUESTIONS_KEPT:
            deferred[stream] = (refreshes, question)
        self._remotes.request_refresh()

    def answer_deferred(self) -> None:
        """The store has answered: answer those whose questions had to wait for that."""
        trust = self._remotes.trust
        deferred, self._deferred = self._deferred, {}
        for link, questions in deferred.items():
            for refreshes, question in questions.values():
                if (
                    trust.sends(link.peer, question.log, question.sequencer)
                    is not ClaimStatus.UNKNOWN
                ):
                    self.answer(link, question)
                elif not trust.is_settled(refreshes):
                    self._defer(link, question, refreshes)

    def answer(self, link: Link, question: Ask) -> None:
        """Tell a sender whether all is here that it has sent, and how much of it is durable."""
        log, epoch, interval = question.log, question.epoch, question.interval
        if self._exchange.held(interval) is None:
            if self._exchange.knows(interval):
                self._answer_draining(link, question)
            else:
                link.send(NotMine(log, epoch, interval))
            return
        if not self._trusts(link, question):
            return
        stream = self._incoming.get((log, interval))
        if stream is None:
            link.send(Gap(log, epoch, interval, NOTHING))
            return
        match stream.judge_question((question.sequencer, epoch), question.last):
            case Verdict.TAKEN:
                self._ack_links[log] = link
                link.send(Progress(log, epoch, interval, stream.done, takes=True))
            case Verdict.GAP:
                link.send(Gap(log, epoch, interval, stream.last))

    def _answer_draining(self, link: Link, question: Ask) -> None:
        """The interval is on its way out: until it is gone nobody needs to send anything."""
        log, epoch, interval = question.log, question.epoch, question.interval
        stream, done = self._incoming.get((log, interval)), 0
        if stream is not None and stream.epoch == (question.sequencer, epoch):
            done = stream.done
        link.send(Progress(log, epoch, interval, done, takes=False))

    def receive_loose(self, link: Link, frame: Loose) -> None:
        """Records of no log: what cannot be taken is dropped, and comes again from its root.

        They may come by a worker that has passed them on, so no owner is asked for: the peer must be
        a worker of the pipeline, and the computation must read the stream.
        """
        step = self._exchange.steps.get(frame.receiver)
        if not self.knows(link) or step is None:
            self._refused["loose"] += len(frame.records)
            return
        rows = [row for _, row in frame.records]
        if not all(row[8] for row in rows):
            raise PeerError("a record of no log that has no id")
        found = [self._delivery(-token, step, row) for token, row in frame.records]
        if not self._can_read(link, step, rows):
            self._refused["too new"] += 1
        elif self._migrate(found, rows):
            self._refused["loose"] += self._trees.receive(step, found, link.peer)

    def _can_read(self, link: Link, step: Step, rows: Iterable[RecordRow]) -> bool:
        """Whether this code knows the streams in a frame as ones that the computation reads, and the
        versions they are sent as. If not, the peer's code is of another generation.

        Raises:
            PeerError: it is of the same one.
        """
        streams = self._env.graph.streams
        for name, version in {(row[1], row[11]) for row in rows}:
            stream = streams.get(name) if name in step.codecs else None
            if stream is None or not leads(stream.migrations, version, stream.version):
                if self._remotes.trust.generation(link.peer) == self._env.generation:
                    raise PeerError(
                        f"records of version {version} of stream {name[:100]!r} for {step.name!r}, "
                        f"which no code of generation {self._env.generation} sends"
                    )
                return False
        return True

    def _delivery(self, log: int, step: Step, row: RecordRow) -> Delivery[Any]:
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
        stream = self._env.graph.streams.get(name)
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

    def _migrate(self, deliveries: list[Delivery[Any]], rows: Iterable[RecordRow]) -> bool:
        """Bring values of other versions up to date. If a migration fails the worker stops: the peer
        is not at fault, and a worker that starts again with this code meets the same record.

        Returns:
            Whether all values are of this code's versions.
        """
        for delivery, row in zip(deliveries, rows, strict=True):
            stream, version = self._env.graph.streams[delivery.stream], row[11]
            if version == stream.version:
                continue
            what = f"stream {stream.name!r}, key {delivery.key_text.decode()}"
            decode = stream.codec.decode
            try:
                delivery.encoded = apply_migrations(
                    delivery.encoded, version, stream.version, stream.migrations, what, decode
                )
            except MigrationFailed as error:
                self._env.fail(error)
                return False
            delivery.value = decode(delivery.encoded)
        return True

    def acknowledge(self, log: int, receiver: int, seqs: Iterable[int]) -> None:
        """Tell the owner of a log, who is elsewhere, that records are durable here (I1)."""
        seqs = list(seqs)
        for stream in self._by_computation.get((log, receiver), {}).values():
            stream.acknowledge(seqs)
        link = self._ack_links.get(log)
        if link is not None:
            runs = _runs(seqs)
            for first in range(0, len(runs), FRAME_RUNS):
                link.send(Acknowledge(log, receiver, runs[first : first + FRAME_RUNS]))

    def link_down(self, link: Link) -> None:
        """A link is down: nothing more is acknowledged over it, and no question of it is answered."""
        self._deferred.pop(link, None)
        for log in [log for log, source in self._ack_links.items() if source is link]:
            del self._ack_links[log]

    def forget(self, interval: Interval) -> None:
        """An interval is gone: its senders begin again, here or elsewhere."""
        for name in [name for name in self._incoming if name[1] == interval.id]:
            del self._incoming[name]
        for streams in self._by_computation.values():
            streams.pop(interval.id, None)


def _is_cell(step: Step, key_text: bytes, slot: int) -> bool:
    """Whether a key is that of a cell of the computation."""
    grain = step.node.grain
    return step.node.cells > 0 and cell_address(slot // grain, grain)[1:] == (key_text, slot)


def _has_slots(interval: Interval, rows: Iterable[RecordRow]) -> bool:
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
