"""The runner: takes records and due timers from the lane's intervals, and runs user code on them.

::

    STOPPED ──start──▶ LOOKING ──took──▶ SORTING ──sorted──▶ RUNNING
       ▲                │  ▲ ▲              │                   │
       │      found none│  │ └─all were seen┴───────ran─────────┘
       │                ▼  │
     stop              IDLE┘ woken                  (stop: from every state)

Decisions of user code go into the open commit (`millwheel.runtime.lane.committer`). While a commit
is on the wire the runner continues, so commits are small when there is little to do and large under
load. A key with code that waits continues in a separate task, and does not delay the runner.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Sequence

from millwheel.core.chunk import Chunk
from millwheel.runtime.environment import Environment
from millwheel.runtime.exchange.exchange import Exchange
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.work import Item
from millwheel.runtime.lane.lane_intervals import LaneIntervals
from millwheel.runtime.lane.open_commit import OpenCommits
from millwheel.runtime.lane.sorting import Sorter
from millwheel.runtime.lane.worker_tasks import ChunkWork, WorkerTasks
from millwheel.runtime.process.state_table import next_state
from millwheel.runtime.process.tasks import end
from millwheel.runtime.running.execution import Group

FAIR_TURN = 8
"""Every `FAIR_TURN`-th look for work starts at another interval, in rotation."""


class Running(enum.Enum):
    STOPPED = "stopped"
    LOOKING = "looking"
    """It looks for work, after reading timers from the store where needed."""
    IDLE = "idle"
    """It has found no work, and waits to be woken."""
    SORTING = "sorting"
    """It looks up the seen ids and states of a chunk, maybe in the store."""
    RUNNING = "running"
    """User code runs on a chunk."""


TRANSITIONS = {
    Running.STOPPED: {"start": Running.LOOKING, "stop": Running.STOPPED},
    Running.LOOKING: {
        "found none": Running.IDLE,
        "took": Running.SORTING,
        "stop": Running.STOPPED,
    },
    Running.IDLE: {"woken": Running.LOOKING, "stop": Running.STOPPED},
    Running.SORTING: {
        "sorted": Running.RUNNING,
        "all were seen": Running.LOOKING,
        "stop": Running.STOPPED,
    },
    Running.RUNNING: {"ran": Running.LOOKING, "stop": Running.STOPPED},
}


class Runner:
    def __init__(
        self,
        env: Environment,
        exchange: Exchange,
        intervals: LaneIntervals,
        commits: OpenCommits,
        sorter: Sorter,
        tasks: WorkerTasks,
    ) -> None:
        self._env = env
        self._exchange = exchange
        self._intervals = intervals
        self._commits = commits
        self._sorter = sorter
        self._tasks = tasks
        self.state = Running.STOPPED
        self.on_full: Callable[[], None]
        self.wake = exchange.wake
        """Set when there may be something to run: records, due timers, credits, room in the
        commit."""
        self._task: asyncio.Task[None] | None = None
        self._stopped: set[asyncio.Task[None]] = set()
        """Cancelled tasks of this runner that may not have ended yet."""
        self._paused = asyncio.Event()
        """Set when a chunk has run, when no work was found, and while the store is asked."""
        self.sorting: Interval | None = None
        """The interval of the records that are being looked up."""
        self._turn = 0
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = 0

    def _change(self, event: str) -> None:
        """Move along the protocol.

        Raises:
            CancelledError: the runner was stopped, and the cancellation of its task was swallowed.
        """
        if self.state is Running.STOPPED and event not in TRANSITIONS[self.state]:
            raise asyncio.CancelledError
        self.state = next_state(TRANSITIONS, self.state, event, "runner")

    # -- life ---------------------------------------------------------------------

    @property
    def is_stopped(self) -> bool:
        return self.state is Running.STOPPED

    def start(self) -> None:
        self._change("start")
        self._task = self._env.spawn(self._run(), "runner")
        self._tasks.open(self._task)

    async def stop(self) -> None:
        """Take no more work; cancel user code that waits: it will run again.

        Returns when the runner's task has ended, also if another caller has stopped it before.
        """
        self._change("stop")  # first: from here on nothing starts another worker task
        self._tasks.shut()
        task, self._task = self._task, None
        if task is not None:
            self._stopped.add(task)
            task.add_done_callback(self._stopped.discard)
        await end(self._stopped)
        await self._tasks.end()
        self._paused.set()

    async def run_queued(self) -> None:
        """Run a chunk of queued work; return when it has run, there is none, or the runner waits
        for the store."""
        self._paused.clear()
        self.wake.set()
        await self._paused.wait()

    # -- running ------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self.wake.clear()
            await self._load_timers()
            now = self._env.now()
            self._intervals.tend_modes(now)
            taken = self._take(now)
            if taken is None:
                await self._rest(now)
                continue
            await self._process(*taken)

    async def _process(self, interval: Interval, taken: Chunk | list[Item]) -> None:
        self._change("took")
        work = await self._sort(interval, taken)
        if work:
            self._change("sorted")
            interval.workload.chunk_begins()
            await self._tasks.run(interval, work)
            interval.workload.chunk_ran(len(taken))
            self._change("ran")
        else:
            self._change("all were seen")
            if interval.leaving:
                self._commits.announce()
        self._paused.set()

    async def _sort(
        self, interval: Interval, taken: Chunk | list[Item]
    ) -> ChunkWork | deque[Group]:
        self.sorting = interval
        try:
            if isinstance(taken, Chunk):
                interval.workload.sample(taken.slots)
                if interval.takes_chunks:
                    groups = await self._sorter.sort_chunk(interval, taken, self._paused.set)
                    if groups is not None:
                        return taken, groups
                items: list[Item] = list(taken.apart())
            else:
                items = taken
                interval.workload.sample([item.slot for item in items])
            interval.dedup.sorting = items
            return await self._sorter.sort(interval, items, self._paused.set)
        finally:
            self.sorting, interval.dedup.sorting = None, ()

    async def _rest(self, now: int) -> None:
        self._change("found none")
        self._wake_for_wall_timers(now)
        self._paused.set()
        await self.wake.wait()
        self._change("woken")

    async def _load_timers(self) -> None:
        now = self._env.now()
        for interval in list(self._intervals.all):
            if not interval.timers.queues:
                continue
            # A page may hold nothing but cancelled timers.
            while kinds := interval.timers.lacking(now):
                self._paused.set()
                for kind in kinds:
                    await self._load_page(interval, kind)

    async def _load_page(self, interval: Interval, kind: str) -> None:
        env = self._env
        limit = env.settings.timers_in_memory
        after = interval.timers.queues[kind].begin_page()
        changes = await env.patiently(
            lambda: env.store.read_timers(interval.id, kind, after, limit)
        )
        interval.timers.add_page(kind, after, changes, more=len(changes) == limit)
        if interval.watermarks.has_news():
            interval.touch(urgent=True)

    def _wake_for_wall_timers(self, now: int) -> None:
        """Wake the runner when the clock reaches the next wall timer. A timer that was due by `now`
        and was not taken waits for another event that wakes the runner."""
        alarms = [interval.next_alarm() for interval in self._intervals.all]
        due = [at for at in alarms if at is not None and at > now]
        if not due or (
            self._alarm is not None and not self._alarm.done() and self._alarm_at <= min(due)
        ):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = min(due)
        self._alarm = self._env.spawn(self._wake_at(self._alarm_at), "alarm")

    async def _wake_at(self, due: int) -> None:
        env = self._env
        while (left := due - env.now()) > 0:
            await env.clock.sleep(left / 1e6)
        self.wake.set()

    # -- taking -------------------------------------------------------------------

    def _take(self, now: int) -> tuple[Interval, Chunk | list[Item]] | None:
        """Take some work of an interval; timers due at `now` come before records."""
        if self._commits.is_full:
            self.on_full()
        if self._commits.is_full or self._tasks.is_full:
            return None
        for interval in self._in_turn():
            has_due = interval.timers.has_due(now)
            asked = interval.requests.waiting
            if not (has_due or interval.intake.length or asked) or interval.leaving:
                continue
            mode = interval.mode
            if not mode.wants_records:
                continue
            decided = self._commits.decided(interval)
            if not (interval.may_send(decided) or mode.needs_records):
                continue
            settings = self._env.settings
            chunk = settings.chunk_records
            if not mode.gathers:  # gathering runs no user code
                chunk = interval.workload.chunk(chunk, settings.bundle_bytes)
            if not has_due:
                if asked:
                    return interval, list(interval.requests.take(chunk))
                return interval, self._take_records(interval, chunk)
            if firings := interval.timers.take_due(now, chunk):
                return interval, list(firings)
            self.wake.set()  # stored timers have come due: they are read before records run
        return None

    def _take_records(self, interval: Interval, limit: int) -> Chunk | list[Item]:
        intake = interval.intake
        queued = intake.length
        taken = intake.take(limit)
        count = len(taken)
        states = interval.states
        states.looked_ahead = max(0, states.looked_ahead - count)
        if queued - count < self._env.settings.max_unacked_records <= queued:
            self._exchange.made_room(interval.step)
        return taken  # type: ignore[return-value]

    def _in_turn(self) -> Sequence[Interval]:
        """The intervals in the order in which they are asked for work.

        The one nearest to the end of the graph comes first, so that records wait at the source and
        not between the stages. Every `FAIR_TURN` times each interval gets a turn, so that no branch
        waits for another's source to run dry.
        """
        self._turn += 1
        intervals = self._intervals.all
        if self._turn % FAIR_TURN or not intervals:
            return self._intervals.downstream_first
        first = self._turn // FAIR_TURN % len(intervals)
        return intervals[first:] + intervals[:first]
