"""Recovers a lane from a failed commit: claims again, reads the durable state, runs records again
(I12).

When a commit fails, all later work of the lane is dropped with it. The lane's intervals are claimed
again, which settles whether the commit is durable. State and timers are read back, and the records
in flight run again; dedup drops those that turn out to be seen. A commit that was refused because
of user code's rows or statements is cut in halves until the item at fault is alone (decision 3).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from millwheel.core.backoff import FIRST_SECONDS, LONGEST_SECONDS, Backoff
from millwheel.core.model import Delivery
from millwheel.errors import (
    BucketGone,
    CommitUnknown,
    Fenced,
    OutputFull,
    StatementError,
    StatementRace,
    StoreUnavailable,
)
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.key_requests import KeyRequest
from millwheel.runtime.interval.turns import Stopped
from millwheel.runtime.interval.work import Item
from millwheel.runtime.lane.open_commit import OpenCommit, OpenCommits
from millwheel.runtime.lane.sorting import Sorter
from millwheel.runtime.lane.worker_tasks import WorkerTasks
from millwheel.runtime.seen.seen_buckets import Buckets

Name = bytes | tuple[bytes, str, str, int] | int
"""Identifies a part of a commit: a record's id, a timer with its time, or an interval without
either."""

Suspect = tuple[Interval, Item]
"""An item of a commit that was refused because of user code's rows or statements."""

PASSING = (StoreUnavailable, CommitUnknown, OutputFull)
"""Errors after which a commit is tried again, for up to `store_patience_seconds`."""

Todo = deque[tuple[list[Suspect], Exception | None]]
"""Parts of a refused commit, each with the error for which it is given up; None: run it again."""

Split = Callable[[list[Suspect], Exception], None]
"""Cuts a refused part in halves, or counts a try of a single item."""

OUTAGE_GAP_SECONDS = 10.0
"""If a failed commit began this long after the last recovery, earlier failures of intervals
(without records or timers) belong to another outage."""

LEAST_FAILURES = 3
"""Least failures of one record or timer before patience with it can end: slow user code may run
longer than `store_patience_seconds` between two failures, and these may belong to two outages."""


@dataclass
class Failures:
    """Failures of one part of a commit to become durable; times are monotonic."""

    since: float
    last: float
    times: int = 0


class Claims(Protocol):
    async def restore(self, intervals: list[Interval]) -> None:
        """Claim intervals again, and start them over from their durable state."""


class CommitterPort(Protocol):
    """The lane's connection, and commits on it while no other work of the lane runs."""

    async def connect(self) -> None:
        """Open the connection."""

    async def disconnect(self) -> None:
        """Close the connection, so that nothing is on the wire."""

    async def commit_open(self) -> None:
        """Commit finished work, if there is any."""


class RecoveringLane(Protocol):
    @property
    def intervals(self) -> list[Interval]: ...
    @property
    def commits(self) -> OpenCommits: ...
    @property
    def sorter(self) -> Sorter: ...
    @property
    def tasks(self) -> WorkerTasks: ...
    @property
    def committer(self) -> CommitterPort: ...

    async def stop_running(self) -> None:
        """Take no more work."""


class Recovery:
    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        buckets: Buckets,
        lane: RecoveringLane,
        claims: Claims,
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._buckets = buckets
        self._lane = lane
        self._claims = claims
        self._failing: dict[Name, Failures] = {}
        """Failures by part of a commit. Patience is counted for each record: durable commits of
        other records prove nothing about a record that always fails."""
        self._recovered_at = 0.0
        """Monotonic time."""
        self._commit_began = 0.0
        """Monotonic time."""
        self._backoff = Backoff(env.clock)

    def commit_begins(self) -> None:
        self._commit_began = self._env.clock.monotonic()

    def commit_durable(self, bundle: OpenCommit) -> None:
        """Note that a commit is durable: a later failure of its parts is another outage."""
        if self._failing:
            for name in (*names_of(bundle), *(interval.id for interval in bundle.works)):
                self._failing.pop(name, None)

    async def recover(self, failed: OpenCommit, error: Exception) -> None:
        """Drop the failed commit and all later work, and start from the durable state."""
        self._env.log.warning("commit_failed", error=str(error))
        if not isinstance(error, (StatementError, Fenced)):
            error = await self._wait_after(error, names_of(failed))
        failed.take_apart()
        suspects = failed.items() if isinstance(error, StatementError) else []
        if isinstance(error, StatementError):
            for interval, work in failed.works.items():
                interval.mode.refused(work, error, alone=len(failed.works) == 1)
        watermarks = {interval: interval.watermarks.input for interval in failed.works}
        await self._start_over(suspects, self._not_again(failed.items(), error))
        here = self._still_here(suspects)
        if here:
            in_company = len(here) < len(suspects) or any(
                work.delivers for work in failed.works.values()
            )
            await self._bisect(here, watermarks, None if in_company else error)

    async def _wait_after(self, error: Exception, names: Sequence[Name]) -> Exception:
        """Wait before the next try, longer each time; load the buckets again if one was missing.

        Returns:
            The error to act on. When patience ends, the error of a user's statement that has always
            lost a race becomes a `StatementError`, so that its record is blamed.

        Raises:
            StoreUnavailable: a part of the commit has failed for `store_patience_seconds`.
            OutputFull: a file has been full for `store_patience_seconds`.
        """
        if isinstance(error, OutputFull):
            await self._wait_for_room(error)
            return error
        if self._is_overdue(error, names):
            if isinstance(error, StatementRace):
                return StatementError(str(error))
            patience = self._env.settings.store_patience_seconds
            raise StoreUnavailable(
                f"commits have failed for {patience:.0f} s: {error}. Nothing is lost: start again "
                "when the store works"
            ) from error
        await self._backoff.wait()
        if isinstance(error, BucketGone):
            await self._env.patiently(self._buckets.load)
        return error

    def _is_overdue(self, error: Exception, names: Sequence[Name]) -> bool:
        """Note failed parts of a commit; True: patience with one of them has ended."""
        now = self._env.clock.monotonic()
        patience = self._env.settings.store_patience_seconds
        failing = self._failing
        if self._commit_began - self._recovered_at > OUTAGE_GAP_SECONDS:
            # A record or timer that fails again is the same one, however long user code has run.
            for interval in [name for name in failing if isinstance(name, int)]:
                del failing[interval]
        if failing.keys().isdisjoint(names):
            self._backoff.restart()
        is_overdue = False
        for name in names:
            found = failing.setdefault(name, Failures(now, now))
            found.last = now
            found.times += 1
            is_overdue |= now - found.since > patience and found.times >= LEAST_FAILURES
        for name in [name for name, of in failing.items() if of.last < now - 2 * patience]:
            del failing[name]  # it has moved to another worker, or was durable after all
        return is_overdue

    async def _wait_for_room(self, error: OutputFull) -> None:
        """Wait for room in a file, longer each time. Patience counts from the file's first failure:
        commits that do not write to the file succeed in between.

        Raises:
            OutputFull: the file has been full for `store_patience_seconds`.
        """
        clock, patience = self._env.clock, self._env.settings.store_patience_seconds
        full = clock.monotonic() - error.since
        if full > patience:
            raise OutputFull(f"{error} (tried for {patience:.0f} s). Then start again") from error
        await clock.sleep(min(max(full, FIRST_SECONDS), LONGEST_SECONDS))

    def _not_again(self, items: list[Suspect], error: Exception) -> list[Delivery[Any]]:
        """Records of at-most-once computations, which must not run again if the commit may be
        durable (`CommitUnknown`)."""
        if not isinstance(error, CommitUnknown):
            return []
        return [
            item
            for interval, item in items
            if interval.step.node.at_most_once and isinstance(item, Delivery)
        ]

    async def _start_over(
        self, suspects: list[Suspect], given_up: Sequence[Delivery[Any]] = ()
    ) -> None:
        """Claim the lane's intervals again, and queue the records in flight again.

        Args:
            suspects: items to keep out of the queues; the caller runs them.
            given_up: records to acknowledge instead of running them again.
        """
        await self._lane.stop_running()
        for interval in list(self._lane.intervals):
            if interval.source_task is not None:
                # Otherwise it would give up bad rows now, and once more when it reads them again.
                await interval.source_task.stop()
        self._lane.commits.drop()
        apart = {id(item) for _, item in suspects} | {id(delivery) for delivery in given_up}
        intervals = list(self._lane.intervals)  # later ones have nothing to start over from
        for interval in intervals:
            interval.requeue(apart)
        await self._reconnect()
        await self._claims.restore(intervals)
        self._exchange.acknowledge(given_up)
        for interval, item in suspects:
            if isinstance(item, Delivery):
                interval.step.renew(item)
                if interval not in self._lane.intervals:
                    self._exchange.send_on(interval.step, [item])
        self._recovered_at = self._env.clock.monotonic()

    def _still_here(self, suspects: list[Suspect]) -> list[Suspect]:
        return [(interval, item) for interval, item in suspects if interval in self._lane.intervals]

    async def _reconnect(self) -> None:
        """Replace the lane's connection; the former one has certainly ended.

        Raises:
            StoreUnavailable: the store has not answered for `store_patience_seconds`.
        """
        backoff = self._env.backoff()
        while True:
            try:
                await self._lane.committer.disconnect()
                await self._lane.committer.connect()
            except StoreUnavailable as error:
                if backoff.is_over:
                    patience = self._env.settings.store_patience_seconds
                    raise StoreUnavailable(
                        f"{error} (tried for {patience:.0f} s). Nothing is lost: start again when "
                        "the store is back"
                    ) from error
            else:
                return
            await backoff.wait()

    async def _bisect(
        self,
        suspects: list[Suspect],
        watermarks: dict[Interval, int],
        error: Exception | None,
    ) -> None:
        """Find the items with refused statements or rows, and give up on these alone.

        Halves are run and committed apart, with the input watermarks of the first run, until each
        culprit is alone. A culprit is tried as often as its computation allows.

        Args:
            suspects: they were refused together.
            error: why all suspects were refused. None: the refused commit also had items that are
                not suspects and may be the cause: of a numbered bundle, or of intervals that are
                gone.
        """
        todo: Todo = deque()
        tries: Counter[int] = Counter()
        stopped: Stopped = set()

        def split(segment: list[Suspect], refused: Exception) -> None:
            middle = len(segment) // 2
            if middle:
                todo.extendleft([(segment[middle:], None), (segment[:middle], None)])
                return
            interval, item = segment[0]
            tries[id(item)] += 1
            given_up = tries[id(item)] > interval.step.node.retries
            todo.appendleft((segment, refused if given_up else None))

        if error is None:
            todo.append((suspects, None))
        else:
            split(suspects, error)
        while todo:
            segment, refused = todo.popleft()
            segment = self._still_here(segment)
            if not segment:
                continue
            try:
                if refused is not None:
                    await self._commit_given_up(segment[0], refused)
                else:
                    await self._run_apart(segment, watermarks, stopped)
            except StatementError as once_more:
                await self._refused(segment, once_more, todo, split)
            except (*PASSING, Fenced) as delay:
                # All items go back to the queues: dedup finds out which ones are durable.
                if not isinstance(delay, Fenced):
                    acted_on = await self._wait_after(delay, [name_of_item(i) for _, i in segment])
                    if isinstance(acted_on, StatementError):
                        await self._refused(segment, acted_on, todo, split)
                        continue
                given_up = self._not_again(segment, delay)
                again = {id(delivery) for delivery in given_up}
                rest = [pair for pair in segment if id(pair[1]) not in again]
                rest += [pair for part, _ in todo for pair in part]
                await self._start_over(rest, given_up)
                rest = self._still_here(rest)
                for interval in dict.fromkeys(interval for interval, _ in rest):
                    records = [i for of, i in rest if of is interval and isinstance(i, Delivery)]
                    interval.intake.put_first(records)
                    interval.requests.start_over(frozenset())  # they are read again
                return

    async def _refused(
        self, segment: list[Suspect], error: StatementError, todo: Todo, split: Split
    ) -> None:
        """Cut items that were refused again in halves; if some are gone now, run the others
        again."""
        await self._start_over([*segment, *(pair for part, _ in todo for pair in part)])
        here = self._still_here(segment)
        if len(here) == len(segment):
            split(segment, error)
        elif here:
            todo.appendleft((here, None))

    async def _run_apart(
        self,
        segment: list[Suspect],
        watermarks: dict[Interval, int],
        stopped: Stopped,
    ) -> None:
        """Run some items and commit them, while no other work of the lane runs. User code runs in
        separate tasks, since the present task is the lane's.

        Args:
            stopped: keys with no further turn.
        """
        by_key: dict[tuple[Interval, bytes], list[Item]] = {}
        for interval, item in segment:
            by_key.setdefault((interval, item.key_text), []).append(item)
        for (interval, key_text), items in by_key.items():
            items = interval.retake(items)
            if not items:
                continue
            state = interval.state_of(items[0].key, key_text, items[0].slot)
            if not state.loaded:
                await self._lane.sorter.load(interval, [state])
            execution = self._lane.tasks.execution(interval, apart=True)
            while items:
                turn, items = interval.turns.apart(items, stopped)
                now = self._env.now()
                changes = await execution.run(state, turn, watermarks[interval], now)
                interval.turns.ran_apart(key_text, execution.effects, stopped)
                self._lane.commits.add(interval, state, turn, execution.effects, changes)
        await self._lane.committer.commit_open()

    async def _commit_given_up(self, suspect: tuple[Interval, Item], error: Exception) -> None:
        interval, item = suspect
        taken = interval.retake([item])
        if not taken:
            return  # a timer that has been cancelled or replaced
        (item,) = taken
        state = interval.state_of(item.key, item.key_text, item.slot)
        attempts = interval.step.node.retries + 1
        now, watermark = self._env.now(), interval.watermarks.input
        effects = interval.turns.failed(item, error, attempts, now, watermark)
        self._lane.commits.add(interval, state, [item], effects, [])
        await self._lane.committer.commit_open()


def names_of(bundle: OpenCommit) -> list[Name]:
    """Names of all parts of a commit: the same whatever other parts are in it."""
    found: list[Name] = []
    for interval, work in bundle.works.items():
        found += [name_of_item(item) for item in work.items]
        for chunk in work.chunks:
            found += chunk.ids()
        if not work.count:
            found.append(interval.id)
    return found


def name_of_item(item: Item) -> Name:
    """The name of a record, timer or request: the same when it runs again."""
    if isinstance(item, Delivery):
        return item.id
    if isinstance(item, KeyRequest):
        return item.key_text, item.verb, "", item.id
    return item.key_text, item.timer.kind, item.timer.tag, item.timer.micros
