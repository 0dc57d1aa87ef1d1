"""Bugs to plant: each changes one rule of the live code, and must be found.

A simulation that finds nothing proves something only if it finds what is there. Each of these takes
away a rule that docs/invariants.md names; `with planted(name)` has it in the code for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any
from unittest import mock

from millwheel.bundles import BundleId
from millwheel.core.chunk import Chunk, Outbox
from millwheel.core.model import MIN_TIME, Delivery, record_id
from millwheel.errors import Fenced, StoreUnavailable, StoreWentBack
from millwheel.kafka import KafkaSink, sink
from millwheel.kafka.port import Interrupted
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.interval_logs import IntervalLogs
from millwheel.runtime.interval.interval_watermarks import IntervalWatermarks
from millwheel.runtime.interval.sent_log import SentLog
from millwheel.runtime.interval.step import Step
from millwheel.runtime.lane import commit_builder as commits
from millwheel.runtime.lane import committer
from millwheel.runtime.lane.committer import Committer
from millwheel.runtime.lane.open_commit import OpenCommit
from millwheel.runtime.lane.recovery import Recovery
from millwheel.runtime.network import wire_stream as delivery
from millwheel.runtime.network.handshake import Handshake
from millwheel.runtime.network.links import Links
from millwheel.runtime.ownership import restoring
from millwheel.runtime.seen.dedup import Dedup
from millwheel.runtime.source.injector import Injector
from millwheel.runtime.source.row_sender import RowSender
from millwheel.store.memory import lane as memory_lane
from millwheel.store.memory.placement import MemoryPlacement
from millwheel.store.port.claims import Claim
from millwheel.store.port.commit import Commit
from millwheel.store.port.states import TIMERS_A_PAGE
from tests.sim.server import Database, Server
from tests.sim.wire import LaneWire, Wire

Patch = tuple[Any, str, Any]
"""(where, what, what instead)."""


def _fence_removed() -> list[Patch]:
    """A commit is taken from whoever comes (I3)."""
    return [(memory_lane, "check_fence", lambda commit, tables: None)]


def _scan_before_claim() -> list[Patch]:
    """A successor reads what is stored, and raises the sequencer after that (I4, figure 12)."""

    async def claim(
        self: Server,
        database: Database,
        worker: str,
        interval_ids: list[int],
        *,
        again: bool = False,
        timers: int = TIMERS_A_PAGE,
        sequencers: Mapping[int, int] | None = None,
    ) -> list[Claim]:
        there = {id_: 0 for id_ in interval_ids if id_ in database.tables.intervals}
        early = database.read_claims((there, {}), timers)
        await asyncio.sleep(self.pause())
        await self.clear_the_way(interval_ids, worker, also_live=sequencers is None)
        raised, new_logs = database.raise_sequencers(
            worker, interval_ids, again=again, sequencers=sequencers
        )
        self.watch.claimed(worker, raised, new_logs)
        claims = [
            replace(
                found,
                interval=replace(found.interval, sequencer=raised[found.interval.id]),
                new_log=new_logs.get(found.interval.id, 0),
            )
            for found in early
            if found.interval.id in raised
        ]
        self.watch.took(worker, claims)
        return claims

    return [(Server, "claim", claim)]


def _ack_before_commit() -> list[Patch]:
    """Senders are told before the commit is durable (I1)."""
    commit = Committer._commit

    async def too_late(self: Committer, made: OpenCommit) -> None:
        chunks = [chunk for work in made.works.values() for chunk in work.chunks]
        self._exchange.acknowledge([i for _, i in made.items() if isinstance(i, Delivery)], chunks)
        await commit(self, made)

    return [(Committer, "_commit", too_late)]


def _timer_fired_twice() -> list[Patch]:
    """The commit of a timer's effects does not take the timer away (I6)."""
    build = commits.build_commit

    def kept(*args: Any) -> Commit:
        commit = build(*args)
        commit.timers = [change for change in commit.timers if change.due is not None]
        return commit

    return [(committer, "build_commit", kept)]


def _watermark_past_a_hold() -> list[Patch]:
    """What is held does not count for what is promised (I5)."""

    def output(self: IntervalWatermarks) -> int:
        return max(self.promised, self.exact)

    return [(IntervalWatermarks, "output", output)]


def _bucket_dropped_early() -> list[Patch]:
    """An interval's floor passes over what it may have to send again (I9)."""
    return [(IntervalLogs, "floor", lambda self, stamp: stamp)]


def _lost_reply_is_failure() -> list[Patch]:
    """What may be durable is run again without a look whether it is (I2, I12)."""

    async def look_up(self: Dedup, maybe: Any) -> set[bytes]:
        return set()

    return [(Dedup, "look_up", look_up)]


def _later_over_failed() -> list[Patch]:
    """A failed bundle is dropped, and the lane goes on with the next one (I12)."""
    recover = Recovery.recover

    async def go_on(self: Recovery, failed: OpenCommit, error: Exception) -> None:
        if not isinstance(error, StoreUnavailable):
            await recover(self, failed, error)
            return
        for interval in failed.works:
            interval.commits.n -= 1
        await self._reconnect()

    return [(Recovery, "recover", go_on)]


def _resend_with_a_new_id() -> list[Patch]:
    """What a successor sends again has another id (I2)."""
    return [(restoring, "record_id", lambda log, seq: record_id(log, seq + (1 << 20)))]


def _credit_leak() -> list[Patch]:
    """Of every third record the credit is not given back (I8)."""
    unacked: Any = vars(SentLog)["unacked"].fget
    return [(SentLog, "unacked", property(lambda self: unacked(self) + self.first // 3))]


def _split_without_a_sequencer() -> list[Patch]:
    """The lower part of a split keeps its sequencer: whoever had it before may write (I3)."""
    split = MemoryPlacement.split

    async def cut(
        self: MemoryPlacement, interval_id: int, sequencer: int, at: int, *, reason: str = ""
    ) -> int:
        made = await split(self, interval_id, sequencer, at, reason=reason)
        self.tables.intervals[interval_id].sequencer = sequencer
        return made

    return [(MemoryPlacement, "split", cut)]


def _plain_read() -> list[Patch]:
    """What became of a commit is read without a claim: the old backend may still be at it (I12)."""
    claim = Server.claim

    async def read(
        self: Server, database: Database, worker: str, ids: list[int], **options: Any
    ) -> list[Claim]:
        rows = database.tables.intervals
        if not options.get("again") or any(i not in rows or rows[i].owner != worker for i in ids):
            return await claim(self, database, worker, ids, **options)
        await asyncio.sleep(self.pause())
        claims = database.read_claims(({i: rows[i].sequencer for i in ids}, {}), TIMERS_A_PAGE)
        self.watch.took(worker, claims)
        return claims

    async def close(self: LaneWire) -> None:
        self._session = None

    return [(Server, "claim", read), (LaneWire, "close", close)]


def _position_past_a_record() -> list[Patch]:
    """A source stores how far it has read, not what is done (I1)."""
    state = SentLog.state

    def as_read(self: SentLog, max_runs: int) -> list[Any]:
        return [self.next_seq, []] if self.source else state(self, max_runs)

    return [(SentLog, "state", as_read)]


def _fold_drops_a_change() -> list[Patch]:
    """A fold takes what was committed meanwhile for folded (I15)."""
    fold = Database.fold

    async def and_more(
        self: Database, interval_id: int, sequencer: int, after: int, through: int
    ) -> bool:
        folded = await fold(self, interval_id, sequencer, after, through)
        if folded:
            newest = self.tables.last_commit(interval_id)[0].link.n
            self.tables.intervals[interval_id].folded = newest
        return folded

    return [(Database, "fold", and_more)]


def _late_record_freezes() -> list[Patch]:
    """A late record holds the watermark at its own timestamp (I5)."""
    number = commits.number

    def by_timestamp(interval: Interval, outbox: Outbox, stamp: int) -> list[Chunk]:
        for chunk in chain.from_iterable(outbox.of.values()):
            chunk.holds = chunk.micros
        without: Any = SimpleNamespace(
            log=interval.log,
            watermarks=SimpleNamespace(promised=MIN_TIME),
        )
        return number(without, outbox, stamp)

    return [(commits, "number", by_timestamp)]


def _run_off_by_one() -> list[Patch]:
    """The numbers of a commit's productions begin one too high (I2)."""
    number = commits.number

    def shifted(interval: Interval, outbox: Outbox, stamp: int) -> list[Chunk]:
        numbered = number(interval, outbox, stamp)
        for chunk in numbered:
            chunk.numbers = [each + 1 for each in chunk.numbers]
        return numbered

    return [(commits, "number", shifted)]


def _column_shifted_by_a_row() -> list[Patch]:
    """A part of a chunk has the values of the rows behind its own (I2)."""
    part = Chunk.part

    def shifted(self: Chunk, places: Sequence[int]) -> Chunk:
        found = part(self, places)
        found.values = found.values[1:] + found.values[:1]
        return found

    return [(Chunk, "part", shifted)]


def _chunk_cut_twice() -> list[Patch]:
    """Of a chunk that was cut, a part is taken by the places of the whole chunk (I1)."""
    cut = Step.cut

    def twice(self: Step, chunk: Chunk) -> Any:
        return [
            (destination, found if found is chunk else found.split(len(found) - 1)[0] or found)
            for destination, found in cut(self, chunk)
        ]

    return [(Step, "cut", twice)]


def _hold_of_the_wrong_row() -> list[Patch]:
    """The rows of a chunk are held at the timestamp of its last row (I5)."""
    holds = RowSender._holds

    def of_the_last(self: RowSender, micros: list[int], moments: list[int]) -> list[int]:
        found = holds(self, micros, moments)
        return [max(found)] * len(found)

    return [(RowSender, "_holds", of_the_last)]


def _ack_of_a_run_too_long() -> list[Patch]:
    """The ACK of a chunk covers the record behind it as well (I1)."""
    acknowledge = SentLog.acknowledge

    def and_one_more(self: SentLog, seqs: Any, reader: int = 0) -> None:
        if isinstance(seqs, range):
            seqs = range(seqs.start, seqs.stop + 1)
        acknowledge(self, seqs, reader)

    return [(SentLog, "acknowledge", and_one_more)]


def _gap_ignored() -> list[Patch]:
    """A receiver takes what comes behind a gap (I14)."""
    judge = delivery.Incoming.judge

    def lenient(self: Any, epoch: Any, previous: int, seqs: Any) -> Any:
        verdict = judge(self, epoch, previous, seqs)
        if verdict is delivery.Verdict.GAP and epoch == self.epoch:
            self.last = seqs[-1]
            self.pending.update(seqs)
            return delivery.Verdict.TAKEN
        return verdict

    return [(delivery.Incoming, "judge", lenient)]


def _no_credit_for_who_waits() -> list[Patch]:
    """An injector whose rows are acknowledged by another worker is not told to read on (I8)."""
    heard = Exchange.acknowledged

    def acknowledged(self: Exchange, log: int, receiver: int, seqs: list[int]) -> None:
        with mock.patch.object(Injector, "acknowledged", return_value=None):
            heard(self, log, receiver, seqs)

    return [(Exchange, "acknowledged", acknowledged)]


def _lost_commits_go_unnoticed() -> list[Patch]:
    """A worker goes on with what it remembers, whatever the server has lost (I16)."""
    check_fence = memory_lane.check_fence

    def check(commit: Commit, tables: Any) -> None:
        try:
            check_fence(commit, tables)
        except StoreWentBack as error:
            raise Fenced(str(error)) from error

    return [(Wire, "_check", lambda self: None), (memory_lane, "check_fence", check)]


def _what_was_sent_survives() -> list[Patch]:
    """A worker that starts over keeps its links, and hears those who have not (I16)."""
    return [
        (Links, "hang_up", lambda self: self._outgoing.clear()),
        (Handshake, "_check", lambda self, hello: None),
    ]


def _bundle_written_again() -> list[Patch]:
    """Nobody looks whether a topic has a bundle already (I19)."""
    return [(sink, "is_written", lambda *args, **options: False)]


def _transaction_believed() -> list[Patch]:
    """A transaction without an answer counts as written (I19)."""
    write = KafkaSink._write

    async def believed(
        self: KafkaSink, id_: str | None, messages: Any, bundle: BundleId, *, singly: bool
    ) -> None:
        with suppress(Interrupted):
            await write(self, id_, messages, bundle, singly=singly)

    return [(KafkaSink, "_write", believed)]


PLANTED: dict[str, Callable[[], list[Patch]]] = {
    "fence removed": _fence_removed,
    "scan before claim": _scan_before_claim,
    "ACK before commit": _ack_before_commit,
    "timer fired twice": _timer_fired_twice,
    "watermark past a hold": _watermark_past_a_hold,
    "bucket dropped early": _bucket_dropped_early,
    "lost reply is failure": _lost_reply_is_failure,
    "later over failed": _later_over_failed,
    "resend with a new id": _resend_with_a_new_id,
    "credit leak": _credit_leak,
    "split without a sequencer": _split_without_a_sequencer,
    "plain read": _plain_read,
    "position past a record": _position_past_a_record,
    "fold drops a change": _fold_drops_a_change,
    "late record freezes": _late_record_freezes,
    "run off by one": _run_off_by_one,
    "column shifted by a row": _column_shifted_by_a_row,
    "chunk cut twice": _chunk_cut_twice,
    "hold of the wrong row": _hold_of_the_wrong_row,
    "ACK of a run too long": _ack_of_a_run_too_long,
    "gap ignored": _gap_ignored,
    "no credit for who waits": _no_credit_for_who_waits,
    "lost commits go unnoticed": _lost_commits_go_unnoticed,
    "what was sent survives": _what_was_sent_survives,
    "bundle written again": _bundle_written_again,
    "transaction believed": _transaction_believed,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The engine with a bug in it."""
    patches = [mock.patch.object(*patch) for patch in PLANTED[name]()]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
