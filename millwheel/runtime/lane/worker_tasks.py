"""Worker tasks: user code runs in them, so that code that waits delays only its own key."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.lane.execution import Execution, Finish, Group
from millwheel.runtime.process.load import measured
from millwheel.runtime.process.tasks import end, failure_of

Work = Callable[[], Coroutine[Any, Any, None]]
"""Makes a coroutine that runs user code."""


class WorkerTasks:
    """The tasks in which the lane runs user code.

    Args:
        finish: takes the effects and changes of state of a key's items.
        on_end: called when a task has ended.
    """

    def __init__(self, env: Environment, finish: Finish, on_end: Callable[[], None]) -> None:
        self._env = env
        self._finish = finish
        self._on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: asyncio.Task[None] | None = None
        """The runner's task; None: no worker task may start, and running ones are being cancelled."""
        self._ran = asyncio.Event()
        """Set when all groups of a `run` have begun."""

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def is_full(self) -> bool:
        """Whether the limit of keys that wait in user code is reached."""
        return len(self._tasks) >= self._env.settings.waiting_keys

    def open(self, runner: asyncio.Task[None]) -> None:
        """Allow tasks to start, for a runner."""
        self._runner = runner

    def shut(self) -> None:
        """Start no more tasks."""
        self._runner = None

    async def end(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        await end(self._tasks)
        self._tasks.clear()
        self._ran.set()

    async def run(self, interval: Interval, groups: deque[Group]) -> None:
        """Run all groups; a group that waits in user code keeps its task, and another task runs the rest."""
        self._ran.clear()
        self._start(interval, groups)
        await self._ran.wait()

    def run_apart(self, interval: Interval, work: Work) -> None:
        """Run user code in a separate task, and count its time for the interval."""
        task = asyncio.create_task(measured(work, interval.workload, self._env.process.run_seconds))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def execution(self, interval: Interval, *, apart: bool) -> Execution:
        """Make an execution of an interval's code, for use by one task."""
        wrap = self._env.options.wrap_weak
        return Execution(interval, self._env.late_uses, apart=apart, wrap=wrap)

    def _start(self, interval: Interval, groups: deque[Group], *, apart: bool = False) -> None:
        self.run_apart(interval, partial(self._work, interval, groups, apart=apart))

    async def _work(self, interval: Interval, groups: deque[Group], *, apart: bool) -> None:
        """Run groups until there are none, or until one waits: then another task takes over.

        User code runs inside this task as a plain await, which costs nothing when it does
        not suspend. If it does, the callback below finds groups left and starts a new task.
        """
        asyncio.get_running_loop().call_soon(self._take_over, interval, groups)
        execution = self.execution(interval, apart=apart)
        try:
            await execution.run_all(groups, self._finish, self._env.now)
        except asyncio.CancelledError:
            # Cancelled neither by `end` nor with all tasks of the loop: user code has cancelled its own
            # task, which is an error.
            if self._runner is not None and not self._runner.cancelling():
                self._start(interval, deque([execution.group]), apart=True)
            raise

    def _take_over(self, interval: Interval, groups: deque[Group]) -> None:
        if groups and self._runner is not None:
            self._start(interval, groups)
        else:
            self._ran.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._env.fail(failure_of(task))
        self._on_end()
