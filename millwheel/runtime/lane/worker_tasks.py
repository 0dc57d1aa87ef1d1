"""Worker tasks: user code runs in them, so that code that waits delays only its own key."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from millwheel.core.chunk import Chunk
from millwheel.core.effects import Effects
from millwheel.core.model import Delivery
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.interval.ports import AtWork
from millwheel.runtime.interval.work import Item
from millwheel.runtime.keys.key_state import CapturedStates
from millwheel.runtime.process.load import measured
from millwheel.runtime.process.tasks import end, failure_of
from millwheel.runtime.running.chunk_stop import NO_STATES, ChunkGroup, Stop, drop, seal
from millwheel.runtime.running.execution import Begun, Execution, Finish, Group

ChunkWork = tuple[Chunk, list[ChunkGroup]]
"""A chunk in flight, and its records by key; no keys: the step's code takes it as it is."""

FinishRun = Callable[[Interval, "Chunk | list[Item]", Effects, CapturedStates], None]
"""Takes the effects and changes of state of a chunk, or of some of its records; the effects are
empty afterwards."""

Work = Callable[[], Coroutine[Any, Any, None]]


OnRan = Callable[[Interval, int, float], None]
"""Called with the number of calls of an interval's user code, and the seconds of each."""


class Turn:
    __slots__ = ("counted", "execution", "interval", "since")

    def __init__(self, interval: Interval, since: float) -> None:
        self.interval = interval
        self.since = since
        """Monotonic time at which the last uncounted call began, or was first seen to wait."""
        self.counted = 0
        """Number of items of its execution that are counted."""
        self.execution: Execution | None = None
        """None: the task has not begun key after key."""


class WorkerTasks:
    """The tasks in which the lane runs user code.

    Args:
        finish: takes the effects and changes of state of a key's items.
        finish_run: takes those of a chunk, or of some of its records.
        on_ran: takes the time of user code.
        on_end: called when a task has ended.
    """

    def __init__(
        self,
        env: Environment,
        finish: Finish,
        finish_run: FinishRun,
        on_ran: OnRan,
        on_end: Callable[[], None],
    ) -> None:
        self._env = env
        self._finish = finish
        self._finish_run = finish_run
        self._on_ran = on_ran
        self._on_end = on_end
        self._tasks: dict[asyncio.Task[None], Turn] = {}
        self._runner: asyncio.Task[None] | None = None
        """None: no worker task may start, and running ones are being cancelled."""
        self._ran = asyncio.Event()
        """Set when all groups of a `run` have begun."""

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def is_full(self) -> bool:
        """Whether the limit of keys that wait in user code is reached."""
        return len(self._tasks) >= self._env.settings.waiting_keys

    def open(self, runner: asyncio.Task[None]) -> None:
        self._runner = runner

    def shut(self) -> None:
        self._runner = None

    async def end(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        await end(self._tasks)
        self._tasks.clear()
        self._ran.set()

    async def run(self, interval: Interval, work: ChunkWork | deque[Group]) -> None:
        """Run all groups; a group that waits keeps its task, and another task runs the rest."""
        self._ran.clear()
        if isinstance(work, tuple):
            chunk, groups = work
            takes = partial(self._work_on_chunk, interval, chunk, groups)
            self.run_apart(interval, takes if groups else partial(self._pass, interval, chunk))
        else:
            self._start(interval, work)
        await self._ran.wait()

    def run_apart(self, interval: Interval, work: Work) -> None:
        """Run user code in a separate task, and count its time for the interval."""
        turn = Turn(interval, self._env.clock.monotonic())
        task = asyncio.create_task(
            measured(
                work, interval.workload, self._env.process.run_seconds, partial(self._count, turn)
            )
        )
        self._tasks[task] = turn
        task.add_done_callback(self._ended)

    def at_work(self, interval: Interval) -> AtWork:
        turns = [turn for turn in self._tasks.values() if turn.interval is interval]
        if not turns:
            return AtWork(0, None, 0.0)
        oldest = min(turns, key=lambda turn: turn.since)
        group = None if oldest.execution is None else oldest.execution.group
        key = None if group is None else group[0].key
        return AtWork(len(turns), key, self._env.clock.monotonic() - oldest.since)

    def running(self, task: asyncio.Task[Any] | None) -> tuple[Interval, Item | None] | None:
        """The interval of a task, and its record or timer if known (of a bundle: the first record);
        None: the task runs no user code of a step. May be called in another thread."""
        turn = self._tasks.get(task)  # type: ignore[arg-type]
        if turn is None:
            return None
        interval, execution = turn.interval, turn.execution
        return interval, interval.mode.first_member if execution is None else execution.running

    def execution(
        self, interval: Interval, *, apart: bool = False, carefully: bool = False
    ) -> Execution:
        """Make an execution of an interval's code, for use by one task."""
        wrap, late_uses = self._env.options.wrap_weak, self._env.late_uses
        return Execution(interval, late_uses, apart=apart, carefully=carefully, wrap=wrap)

    # -- a chunk --------------------------------------------------------------------------

    async def _pass(self, interval: Interval, chunk: Chunk) -> None:
        """Run the step's code on a chunk as it is; if it fails, on its keys."""
        execution = self.execution(interval)
        self._begins(execution)
        began = self._env.clock.monotonic()
        if not execution.pass_chunk(chunk):
            await self._work_on_chunk(interval, chunk, interval.begin_keys(chunk))
            return
        took = self._env.clock.monotonic() - began
        self._on_ran(interval, len(chunk), took / len(chunk))
        self._finish_run(interval, chunk, execution.effects, NO_STATES)
        self._ran.set()

    async def _work_on_chunk(
        self, interval: Interval, chunk: Chunk, groups: list[ChunkGroup]
    ) -> None:
        """Run a chunk as a whole; if it stops, or its effects cannot be stored, take it apart."""
        execution = self.execution(interval)
        self._begins(execution)
        began = self._env.clock.monotonic()
        stop = execution.run_chunk(chunk, groups, self._env.now())
        effects = execution.effects
        ran = len(chunk) if stop is None else sum(len(of) for _, of in groups[: stop.done])
        if ran:
            self._on_ran(interval, ran, (self._env.clock.monotonic() - began) / ran)
        if stop is None and (captured := seal(interval, groups, effects)) is not None:
            _let_go(interval, groups)
            self._finish_run(interval, chunk, effects, captured)
            self._ran.set()
            return
        records = interval.dedup.take_apart(chunk)
        singly: list[Group] = [
            (state, [records[place] for place in places]) for state, places in groups
        ]
        if stop is None:
            _renew(interval, singly)
            await self._work(interval, deque(singly), apart=False)
        else:
            await self._work_on_rest(interval, execution, stop, groups, singly)

    async def _work_on_rest(
        self,
        interval: Interval,
        execution: Execution,
        stop: Stop,
        groups: list[ChunkGroup],
        singly: list[Group],
    ) -> None:
        """Finish the keys that have run, continue the stopped one here or run it again, and run the
        others in another task."""
        ran, stopped, rest = singly[: stop.done], singly[stop.done], singly[stop.done + 1 :]
        effects = execution.effects.split(stop.productions, stop.mark, stopped[0].key_text)
        captured = seal(interval, groups[: stop.done], effects)
        if captured is None:
            _renew(interval, ran)
            rest = ran + rest
        elif ran:
            _let_go(interval, groups[: stop.done])
            items = [item for _, items in ran for item in items]
            self._finish_run(interval, items, effects, captured)
        if rest:
            self._start(interval, deque(rest))
        else:
            self._ran.set()
        begun = None
        if stop.waiting is not None:
            begun = stop.begun, stop.waiting
        else:
            drop([groups[stop.done]], execution.effects)
            execution = self.execution(interval, carefully=True)
        await self._run(interval, execution, deque([stopped]), begun)

    # -- records and timers one by one ----------------------------------------------------

    def _start(self, interval: Interval, groups: deque[Group], *, apart: bool = False) -> None:
        self.run_apart(interval, partial(self._work, interval, groups, apart=apart))

    async def _work(self, interval: Interval, groups: deque[Group], *, apart: bool) -> None:
        """Run groups until there are none, or until one waits: then another task takes over.

        User code runs inside this task as a plain await, which costs nothing if it does not
        suspend. If it does, the callback below finds groups left and starts a new task.
        """
        asyncio.get_running_loop().call_soon(self._take_over, interval, groups)
        await self._run(interval, self.execution(interval, apart=apart), groups)

    async def _run(
        self,
        interval: Interval,
        execution: Execution,
        groups: deque[Group],
        begun: Begun | None = None,
    ) -> None:
        self._begins(execution)
        try:
            await execution.run_all(groups, self._finish, self._env.now, begun)
        except asyncio.CancelledError:
            # Cancelled neither by `end` nor with all tasks of the loop: user code has cancelled its
            # own task, which is an error.
            if self._runner is not None and not self._runner.cancelling():
                assert execution.group is not None
                self._start(interval, deque([execution.group]), apart=True)
            raise

    def _begins(self, execution: Execution) -> None:
        if (task := asyncio.current_task()) in self._tasks:
            self._tasks[task].execution = execution

    def _take_over(self, interval: Interval, groups: deque[Group]) -> None:
        if groups and self._runner is not None:
            self._start(interval, groups)
        else:
            self._ran.set()

    def _count(self, turn: Turn) -> None:
        if turn.execution is not None and (ran := turn.execution.ran - turn.counted):
            now = self._env.clock.monotonic()
            self._on_ran(turn.interval, ran, (now - turn.since) / ran)
            turn.counted, turn.since = turn.execution.ran, now

    def _ended(self, task: asyncio.Task[None]) -> None:
        if (turn := self._tasks.pop(task, None)) is not None:
            self._count(turn)
        self._env.fail(failure_of(task))
        self._on_end()


def _let_go(interval: Interval, groups: list[ChunkGroup]) -> None:
    """Note that keys do not run any more; while a chunk ran, no item has arrived for them."""
    backlog = interval.backlog
    if len(backlog) == len(groups):
        backlog.clear()
    else:
        for state, _ in groups:
            del backlog[state.key_text]


def _renew(interval: Interval, groups: list[Group]) -> None:
    for _, items in groups:
        for item in items:
            if isinstance(item, Delivery):
                interval.step.renew(item)
