"""Receives records from other workers, and acknowledges them (decision 23).

A `Deliver` or `Ask` counts if the store says that the peer owns the frame's log under its sequencer
(I18, `millwheel.runtime.network.trust`). If the last placement does not decide this, the records
are dropped, the placement is refreshed, and the peer is answered as if it had just asked: it sends
them again at once. `Loose` records are accepted from any worker of the pipeline, since they may
arrive by way of a third one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import ge

from millwheel.core.chunk import Chunk, together
from millwheel.errors import MigrationFailed, PeerError
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.step import Step
from millwheel.runtime.network.frames import (
    FRAME_RUNS,
    Acknowledge,
    Ask,
    Deliver,
    DeliverChunk,
    Gap,
    Loose,
    NotMine,
    Progress,
    Run,
    TooNew,
)
from millwheel.runtime.network.peer_ports import Link
from millwheel.runtime.network.remote_intervals import RemoteIntervals
from millwheel.runtime.network.trust import ClaimStatus
from millwheel.runtime.network.wire_records import (
    migrate,
    migrate_rows,
    numbers_of,
    read,
    read_loose,
    slots_of,
    types_of,
    types_of_rows,
    unreadable,
)
from millwheel.runtime.network.wire_stream import NOTHING, Incoming, Verdict

QUESTIONS_KEPT = 10_000
"""Maximum of deferred questions per peer; further ones are dropped, and repeated."""


class Receiver:
    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        remotes: RemoteIntervals,
        refused: Counter[str],
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._remotes = remotes
        self._refused = refused
        self._ack_links: dict[int, Link] = {}
        """Links on which the records of each log last arrived."""
        self._incoming: dict[tuple[int, int], Incoming] = {}
        """Streams by log and receiving interval."""
        self._by_computation: dict[tuple[int, int], dict[int, Incoming]] = {}
        """Streams by log and receiving computation, then by interval."""
        self._deferred: dict[Link, dict[tuple[int, int], tuple[int, Ask]]] = {}
        """Deferred questions by link, then by log and receiving interval; each with the number of
        refreshes that had begun at its arrival."""

    def receive(self, link: Link, frame: Deliver | DeliverChunk) -> None:
        """A sender that does not know of a split yet sends records of slots that the interval no
        longer has."""
        seqs = numbers_of(frame)
        interval = self._exchange.held(frame.interval)
        if interval is None or not _has_slots(interval, slots_of(frame)):
            self._refused["not mine"] += 1
            link.send(NotMine(frame.log, frame.epoch, frame.interval))
            return
        if frame.receiver != interval.step.id:
            raise PeerError(
                f"records for computation {frame.receiver} and interval {frame.interval}, which "
                f"belongs to computation {interval.step.id}"
            )
        if not frame.previous < seqs[0] or any(map(ge, seqs, islice(seqs, 1, None))):
            raise PeerError(f"the numbers of the records of log {frame.log} do not ascend")
        streams = self._env.graph.streams
        records = read(frame, interval.step, streams)
        question = Ask(frame.log, frame.sequencer, frame.epoch, frame.interval, seqs[-1])
        if not self._trusts(link, question):
            return
        if not self._can_read(link, interval.step, types_of(frame)):
            self._refused["too new"] += 1
            link.send(TooNew(frame.log, frame.epoch, frame.interval))
            return
        if not self._succeeds(lambda: migrate(frame, records, streams)):
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
                interval.intake.extend(
                    [records] if isinstance(records, Chunk) else together(records)
                )
                interval.wake()

    def _trusts(self, link: Link, question: Ask) -> bool:
        """Whether the peer owns the log; if that is unknown, the question is deferred.

        If the store names the peer although this worker sends the log, this worker has lost it
        without knowing: accepted records would be acknowledged to this worker itself. The next
        commit reveals the loss, and the peer asks again.
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
        """Whether a peer is a worker of the pipeline. If not, it may have just joined: request a
        refresh."""
        remotes = self._remotes
        if remotes.trust.knows(link.peer):
            return True
        remotes.request_refresh()
        return False

    def _defer(self, link: Link, question: Ask, refreshes: int) -> None:
        deferred = self._deferred.setdefault(link, {})
        stream = (question.log, question.interval)
        if stream in deferred or len(deferred) < QUESTIONS_KEPT:
            deferred[stream] = (refreshes, question)
        self._remotes.request_refresh()

    def answer_deferred(self) -> None:
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
        log, epoch, interval = question.log, question.epoch, question.interval
        stream, done = self._incoming.get((log, interval)), 0
        if stream is not None and stream.epoch == (question.sequencer, epoch):
            done = stream.done
        link.send(Progress(log, epoch, interval, done, takes=False))

    def receive_loose(self, link: Link, frame: Loose) -> None:
        """A worker may have forwarded the records, so the log's owner is not checked."""
        step = self._exchange.steps.get(frame.receiver)
        if not self.knows(link) or step is None:
            self._refused["loose"] += len(frame.records)
            return
        rows = [row for _, row in frame.records]
        if not all(row[8] for row in rows):
            raise PeerError("a record in no log has no id")
        streams = self._env.graph.streams
        found = read_loose(frame.records, step, streams)
        if not self._can_read(link, step, types_of_rows(rows)):
            self._refused["too new"] += 1
        elif self._succeeds(lambda: migrate_rows(found, rows, streams)):
            self._refused["loose"] += self._exchange.trees.receive(step, found, link.peer)

    def _can_read(self, link: Link, step: Step, types: Iterable[tuple[str, int]]) -> bool:
        """Whether the computation reads the frame's streams in their versions. If not, the peer's
        code must be of another generation, or it is a `PeerError`."""
        found = unreadable(types, step, self._env.graph.streams)
        if found is not None and self._remotes.trust.generation(link.peer) == self._env.generation:
            name, version = found
            raise PeerError(
                f"records of version {version} of stream {name[:100]!r} for {step.node.label!r}, "
                f"which no code of generation {self._env.generation} sends"
            )
        return found is None

    def _succeeds(self, migrate: Callable[[], None]) -> bool:
        """Whether the values could be migrated.

        A failure stops the worker: the peer is not at fault, and the same code would receive the
        same record again.
        """
        try:
            migrate()
        except MigrationFailed as error:
            self._env.fail(error)
            return False
        return True

    def acknowledge(self, log: int, receiver: int, seqs: Iterable[int]) -> None:
        seqs = list(seqs)
        for stream in self._by_computation.get((log, receiver), {}).values():
            stream.acknowledge(seqs)
        link = self._ack_links.get(log)
        if link is not None:
            runs = _runs(seqs)
            for first in range(0, len(runs), FRAME_RUNS):
                link.send(Acknowledge(log, receiver, runs[first : first + FRAME_RUNS]))

    def link_down(self, link: Link) -> None:
        self._deferred.pop(link, None)
        for log in [log for log, source in self._ack_links.items() if source is link]:
            del self._ack_links[log]

    def forget(self, interval: Interval) -> None:
        for name in [name for name in self._incoming if name[1] == interval.id]:
            del self._incoming[name]
        for streams in self._by_computation.values():
            streams.pop(interval.id, None)


def _has_slots(interval: Interval, slots: Sequence[int]) -> bool:
    low, high = interval.slots
    return low <= min(slots) and max(slots) < high


def _runs(seqs: Iterable[int]) -> list[Run]:
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
