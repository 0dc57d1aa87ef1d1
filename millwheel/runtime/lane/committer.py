"""The committer: commits the lane's finished work, one commit after the other (I12).

::

    IDLE ──wanted──▶ JOINING ──built──▶ COMMITTING ──failed──▶ RECOVERING
      ▲                 │ ▲                 │                      │
      └──nothing left───┘ └─────durable─────┴──────recovered───────┘

It takes all that the open commit holds, commits it, and only then acknowledges the senders and
sends the productions (I1). When a commit fails, everything later in the lane is dropped with it;
there is one way back (`millwheel.runtime.lane.recovery`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any

from millwheel.core.chunk import Chunk, Chunks
from millwheel.core.model import Delivery
from millwheel.errors import Fenced, StatementError, StoreError
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.exchange.watermark_publisher import WatermarkPublisher
from millwheel.runtime.interval.interval import Interval, Ownership
from millwheel.runtime.interval.work import IntervalWork
from millwheel.runtime.lane.commit_builder import build_commit
from millwheel.runtime.lane.dead_letter_log import DeadLetterLog
from millwheel.runtime.lane.lane_intervals import LaneIntervals
from millwheel.runtime.lane.open_commit import OpenCommit, OpenCommits
from millwheel.runtime.lane.recovery import PASSING, Recovery
from millwheel.runtime.lane.runner import Runner, Running
from millwheel.runtime.process.state_table import next_state
from millwheel.runtime.seen.seen_buckets import Buckets
from millwheel.store.port.commit import Commit, StoreLane

JOINING_RECORDS = 1000
"""A commit with this many records waits for no more: its overhead is a few per cent of theirs."""


class Committing(enum.Enum):
    IDLE = "idle"
    JOINING = "joining"
    """Queued records run before the commit, so that they join it."""
    COMMITTING = "committing"
    """A commit is on the wire."""
    RECOVERING = "recovering"
    """The lane starts over from its durable state."""


TRANSITIONS = {
    Committing.IDLE: {"wanted": Committing.JOINING},
    Committing.JOINING: {"built": Committing.COMMITTING, "nothing left": Committing.IDLE},
    Committing.COMMITTING: {"durable": Committing.JOINING, "failed": Committing.RECOVERING},
    Committing.RECOVERING: {"recovered": Committing.JOINING},
}


class Committer:
    """Commits the finished work of the lane's intervals, in order, on one connection."""

    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        buckets: Buckets,
        publisher: WatermarkPublisher,
        letters: DeadLetterLog,
        intervals: LaneIntervals,
        commits: OpenCommits,
        runner: Runner,
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._buckets = buckets
        self._publisher = publisher
        self._letters = letters
        self._intervals = intervals
        self._commits = commits
        self._runner = runner
        self.recovery: Recovery
        """Recovers from a failed commit; uses this committer in turn."""
        self.on_recovered: Callable[[], None]
        """Lets the runner take work again."""
        self.state = Committing.IDLE
        self.on_wire: Container[Interval] = ()
        self._connection: StoreLane | None = None
        self.waits_since: float | None = None
        """Monotonic time of the first try of the oldest commit that is not durable; None: there is
        none."""

    def _change(self, event: str) -> None:
        self.state = next_state(TRANSITIONS, self.state, event, "committer")

    # -- the connection -----------------------------------------------------------------

    async def connect(self) -> None:
        self._connection = await self._env.store.open_lane()

    async def disconnect(self) -> None:
        """Close the lane's connection, so that nothing is on the wire."""
        if self._connection is not None:
            await self._connection.close()  # if this fails, the next connection ends it
            self._connection = None

    async def close(self) -> None:
        """Close the connection; if that fails, a successor ends it on the server."""
        with suppress(StoreError):
            await self.disconnect()

    # -- the loop -------------------------------------------------------------------------

    @property
    def is_committing(self) -> bool:
        """Whether a commit is on the wire, or the lane recovers from a failed one."""
        return self.state in (Committing.COMMITTING, Committing.RECOVERING)

    async def run(self) -> None:
        """Commit finished work and other changes of intervals, until cancelled."""
        commits, intervals = self._commits, self._intervals.all
        while True:
            await commits.wanted.wait()
            self._change("wanted")
            while commits.wanted.is_set() and commits.has_any(intervals):
                commits.wanted.clear()
                if (early := commits.take_early()) is not None:
                    commit, built = early
                else:
                    await self._let_records_join()
                    if (closed := await self._close()) is None:
                        break
                    commit, built = closed, None
                self._change("built")
                self.on_wire = commit.works
                await self._commit_or_recover(commit, built)
                self.on_wire = ()
                commits.announce()
            self._change("nothing left")
            self.waits_since = None
            commits.wanted.clear()
            commits.announce()
            self._env.check_finished()

    async def _commit_or_recover(self, commit: OpenCommit, built: Commit | None) -> None:
        try:
            await self._commit(commit, built)
        except (*PASSING, StatementError, Fenced) as error:
            self._change("failed")
            await self.recovery.recover(commit, error)
            self._change("recovered")
            if not self._env.stopping:
                self.on_recovered()
        else:
            self._change("durable")

    async def finish(self) -> None:
        """Commit all finished work, and return when it is durable."""
        while self.state is not Committing.IDLE or self._commits.has_any(self._intervals.all):
            self._commits.wanted.set()
            await self._commits.settled()

    async def _let_records_join(self) -> None:
        """Run queued records before a commit, so that they join it, unless it has many already.

        Without this, each record would wait at each stage for a commit of other records, a record
        and the watermark after it would take turns, and under load few records would share a
        commit.
        """
        limit = min(JOINING_RECORDS, self._env.settings.bundle_records)
        commits, runner = self._commits, self._runner
        before = -1
        while before < commits.open.count < limit and not runner.is_stopped:
            if runner.state is Running.SORTING:
                return  # the runner waits for the store
            if not any(i.intake.length and not i.leaving for i in self._intervals.all):
                return
            before = commits.open.count
            await runner.run_queued()

    async def _close(self) -> OpenCommit | None:
        """Take the next commit once the bucket of its stamp is open."""
        while (stamp := self._open_stamp()) is None:
            await self._env.patiently(self._buckets.ensure_current)
        commit = self._commits.close(self._intervals.all, stamp)
        if commit is not None:
            self._runner.wake.set()  # there is room in the open commit
        return commit

    def _open_stamp(self) -> int | None:
        """The stamp of a commit that is closed now; None: its bucket is not open. The clock may be
        set at any moment, so it is asked once."""
        stamp = self._env.stamps.coming()
        return stamp if self._buckets.covers(stamp) else None

    async def commit_open(self) -> None:
        """Commit finished work, if there is any, while no other work of the lane runs."""
        commit = await self._close()
        if commit is not None:
            await self._commit(commit)

    # -- one commit -----------------------------------------------------------------------

    def build_early(self) -> None:
        """Build the open commit while the one before it is on the wire, so that it follows at once.

        If the one before fails, it is dropped with all later work. Modes and files count from the
        durable state: with them, nothing is built early.
        """
        commits = self._commits
        if (
            self.state is not Committing.COMMITTING
            or commits.early is not None
            or commits.has_isolated
            or (stamp := self._open_stamp()) is None
            or not all(i.mode.is_strong and i.part_file is None for i in self._intervals.all)
        ):
            return
        commit = commits.close(self._intervals.all, stamp)
        if commit is not None:
            built = build_commit(self._buckets, commit)
            commits.early = commit, built
            commits.wanted.set()
            assert self._connection is not None
            self._connection.prepare(built)

    async def _commit(self, commit: OpenCommit, built: Commit | None = None) -> None:
        self.recovery.commit_begins()
        if built is None:
            built = build_commit(self._buckets, commit)
        for interval, work in commit.works.items():
            if work.effects.lines and interval.part_file is not None:
                await interval.part_file.append(work.effects.lines)
        assert self._connection is not None
        clock = self._env.clock
        sent = clock.monotonic()
        if self.waits_since is None:
            self.waits_since = sent
        await self._connection.commit(built)
        self.waits_since = None
        self._exchange.observer.commit_durable(clock.monotonic() - sent)
        self.recovery.commit_durable(commit)
        self._settle(commit, built)

    def _settle(self, commit: OpenCommit, built: Commit) -> None:
        exchange = self._exchange
        works, productions = self._still_held(commit, built)
        acknowledged: list[Delivery[Any]] = []
        chunks: list[Chunk] = []
        for interval, work in works.items():
            interval.settled(work)
            if work.given_up:  # these rows have no reader that acknowledges them
                exchange.rows_acknowledged(interval)
            exchange.observer.records_durable(interval, work)
            interval.workload.records += work.count
            interval.workload.records_out += work.records_out
            if work.items:
                ids = [item.id for item in work.items if type(item) is Delivery]
                acknowledged += interval.dedup.landed(ids)
            for chunk in work.chunks:
                acknowledged += interval.dedup.chunk_landed(chunk)
            chunks += work.chunks
        self._env.processed += commit.count
        exchange.acknowledge(acknowledged, chunks)
        exchange.send(productions)
        if built.dead_letters:
            self._letters.add(built.dead_letters)
        for interval, work in works.items():
            self._publisher.stored(interval, work)
        exchange.shrink_caches()

    def _still_held(
        self, commit: OpenCommit, built: Commit
    ) -> tuple[dict[Interval, IntervalWork], list[Chunk]]:
        """The intervals still held here and their productions; for others, the next owner publishes
        the durable watermark and sends the durable productions."""
        assert isinstance(built.productions, Chunks)
        works, productions = commit.works, built.productions.chunks
        if commit.sent_once:
            together = [*productions, *commit.sent_once]
            productions = sorted(together, key=lambda chunk: (chunk.log, chunk.numbers[0]))
        if any(interval.ownership is not Ownership.HELD for interval in works):
            works = {i: work for i, work in works.items() if i.ownership is Ownership.HELD}
            productions = [p for p in productions if p.log in self._exchange.logs]
        return works, productions
