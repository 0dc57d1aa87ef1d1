"""Open commits: finished work of the lane that waits for a commit, per interval."""

from __future__ import annotations

import asyncio
from collections import deque

from millwheel.core.chunk import Chunk
from millwheel.core.effects import Effects
from millwheel.core.model import Firing
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.work import IntervalWork, Item
from millwheel.runtime.keys.key_state import CapturedStates, KeyState
from millwheel.runtime.keys.map_entries import Change
from millwheel.store.port.commit import Commit


class OpenCommit:
    __slots__ = ("sent_once", "stamp", "works")

    def __init__(self) -> None:
        self.works: dict[Interval, IntervalWork] = {}
        self.stamp = 0
        """Given when it is closed."""
        self.sent_once: list[Chunk] = []
        """Productions that are stored nowhere, and sent once, when the commit is durable."""

    @property
    def count(self) -> int:
        count = 0
        for work in self.works.values():
            count += work.count
        return count

    @property
    def size(self) -> int:
        """Approximate size of the effects, in bytes."""
        size = 0
        for work in self.works.values():
            size += work.effects.size
        return size

    def work(self, interval: Interval) -> IntervalWork:
        found = self.works.get(interval)
        if found is None:
            found = self.works[interval] = IntervalWork()
        return found

    def take_apart(self) -> None:
        """Take all chunks apart, so that records can run one by one, in the order in which they
        ran."""
        for interval, work in self.works.items():
            for place, chunk in zip(reversed(work.places), reversed(work.chunks), strict=True):
                work.items[place:place] = interval.dedup.take_apart(chunk)
            work.chunks.clear()
            work.places.clear()

    def items(self) -> list[tuple[Interval, Item]]:
        """The items that can run apart, in the order in which they ran: not members of a numbered
        bundle."""
        return [
            (interval, item)
            for interval, work in self.works.items()
            if not work.delivers
            for item in work.items
        ]


class OpenCommits:
    """The open commit of a lane, and isolated commits."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self.open = OpenCommit()
        self.early: tuple[OpenCommit, Commit] | None = None
        """A full commit, built while the one before it is on the wire."""
        self._isolated: deque[OpenCommit] = deque()
        """Commits to make separately because a shared commit was refused."""
        self.wanted = asyncio.Event()
        """Set to ask the committer for a commit."""
        self._settled = asyncio.Event()
        """Set when some work has ended; replaced by a new event each time."""

    # -- the runner puts work in --------------------------------------------------------

    @property
    def is_full(self) -> bool:
        commit, settings = self.open, self._env.settings
        return bool(commit.works) and (
            commit.count >= settings.bundle_records or commit.size >= settings.bundle_bytes
        )

    def decided(self, interval: Interval) -> int:
        """Number of an interval's productions that have no number yet."""
        work = self.open.works.get(interval)
        return 0 if work is None else len(work.effects.productions)

    def work(self, interval: Interval, *, alone: bool = False) -> IntervalWork:
        """An interval's part of the open commit, which is committed soon.

        Args:
            alone: give a part of a separate commit, not shared with other work.
        """
        self.wanted.set()
        if not alone:
            return self.open.work(interval)
        commit = OpenCommit()
        self._isolated.append(commit)
        return commit.work(interval)

    def add(
        self,
        interval: Interval,
        state: KeyState,
        items: list[Item],
        effects: Effects,
        changes: list[Change],
    ) -> None:
        """Put the effects of a key's items into the open commit, unless the interval's mode is
        responsible for them; `effects` are empty afterwards."""
        mode = interval.mode
        if mode.may_keep_work and not mode.decided(items, effects, changes):
            effects.let_up()
            return
        if effects.held:
            interval.watermarks.release += effects.held
            effects.held.clear()
        turns = interval.turns
        work = self.open.works.get(interval) or self.work(interval)
        work.items += turns.decided(state.key_text, items, effects)
        if interval.timers.firings:
            for item in items:
                if type(item) is Firing:
                    interval.timers.fired(item)
        if changes:
            n = interval.commits.n + 1
            if state.n != n:
                state.carry(changes, n)
            _change(work, effects, state, changes)
        _take(interval, work, effects)
        turns.added(state.key_text)

    def add_run(
        self,
        interval: Interval,
        ran: Chunk | list[Item],
        effects: Effects,
        captured: CapturedStates,
    ) -> None:
        """As `add`, for a chunk or some of its records."""
        work = self.open.works.get(interval) or self.work(interval)
        if isinstance(ran, Chunk):
            work.chunks.append(ran)
            work.places.append(len(work.items))
        else:
            work.items += ran
        if effects.held:
            interval.watermarks.release += effects.held
            effects.held.clear()
        work.states.update(zip(captured.states, captured.values, strict=True))
        effects.size += 64 * len(captured.states) + sum(map(len, filter(None, captured.values)))
        for state, changed in captured.others:
            _change(work, effects, state, changed)
        _take(interval, work, effects)

    # -- the committer takes it out -------------------------------------------------------

    def has_any(self, intervals: list[Interval]) -> bool:
        return not self.is_empty or any(interval.dirty for interval in intervals)

    @property
    def is_empty(self) -> bool:
        return not (self.open.works or self._isolated or self.early)

    def holds(self, interval: Interval) -> bool:
        return interval in self.open.works or (
            self.early is not None and interval in self.early[0].works
        )

    def take_early(self) -> tuple[OpenCommit, Commit] | None:
        early, self.early = self.early, None
        if early is not None:
            self.wanted.set()  # for what has run since it was built
        return early

    @property
    def has_isolated(self) -> bool:
        return bool(self._isolated)

    def close(self, intervals: list[Interval], stamp: int) -> OpenCommit | None:
        """Take the next commit: an isolated one, or the open one with all changes of intervals;
        None: there is nothing to store.

        Args:
            stamp: the commit's, whose bucket is open.
        """
        commit = self._next(intervals)
        if commit is not None:
            commit.stamp = stamp
            self._env.stamps.restore(stamp)
        return commit

    def _next(self, intervals: list[Interval]) -> OpenCommit | None:
        if self._isolated:
            self.wanted.set()  # for the remaining commits
            return self._isolated.popleft()
        commit = self.open
        for interval in intervals:
            if interval.dirty:
                commit.work(interval)
        if not commit.works:
            return None
        self.open = OpenCommit()
        return commit

    def drop(self) -> None:
        self.open = OpenCommit()
        self.early = None
        self._isolated.clear()

    # -- waiting for work to end ---------------------------------------------------------------

    async def settled(self) -> None:
        """Wait until a commit, or other work of the lane, has ended."""
        await self._settled.wait()

    def announce(self) -> None:
        """Wake tasks that wait for an interval to drain: some work has ended."""
        settled, self._settled = self._settled, asyncio.Event()
        settled.set()


def _change(work: IntervalWork, effects: Effects, state: KeyState, changes: list[Change]) -> None:
    for entry, encoded in changes:
        if entry:
            work.entries[(state.key_text, entry)] = (state.slot, encoded)
        else:
            work.states[state] = encoded
        effects.size += 64 if encoded is None else 64 + len(encoded)


def _take(interval: Interval, work: IntervalWork, effects: Effects) -> None:
    if effects.timers:
        _set_timers(interval, effects)
    interval.workload.decided_bytes += effects.size
    work.effects.take(effects)


def _set_timers(interval: Interval, effects: Effects) -> None:
    """Set and cancel timers in memory; no timer's hold may be below the promised low watermark."""
    promised, n = interval.watermarks.promised, interval.commits.n + 1
    for name, timer in effects.timers.items():
        if timer is not None and timer[1] < promised:
            timer = effects.timers[name] = (timer[0], promised, timer[2], timer[3])
        interval.timers.set(name, timer, n)
