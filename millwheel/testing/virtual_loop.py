"""An asyncio event loop on virtual time, for simulating several machines in one process.

::

    loop = new_loop()
    one = loop.machine("one")
    one.start(serve())              # its tasks, timers and callbacks belong to `one`
    loop.run(play())                # an hour of sleeping takes no real time

When no callback is ready the loop jumps to the next timer. There are no sockets, threads or signals
(`run_in_executor` runs the function at once), and callbacks run in the order in which they became
ready: behaviour is deterministic. A *machine* is a group of tasks that pause or crash together,
with all that they start, between any two steps::

    runs ──pause──> paused ──resume──> runs
     └──────crash──────┴─────────────> crashed

Callbacks of a paused machine are queued until `resume`. After a crash none run, not even
``finally`` blocks. `Machine.after` triggers either after N more steps.
"""

from __future__ import annotations

import asyncio
import heapq
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Work = Generator[Any, None, T] | Coroutine[Any, Any, T]

_machine: ContextVar[Machine | None] = ContextVar("machine", default=None)

PRUNE_TASKS = 500
"""Number of new tasks after which finished ones are removed from the list."""


class NothingToDo(Exception):
    """Deadlock: no callback is ready and no timer is set, so the awaited result cannot arrive."""


class VirtualTask(asyncio.Task[T]):
    """A task with a hash that does not depend on its address: sets of tasks are ordered alike
    everywhere."""

    _log_destroy_pending: bool

    def __init__(self, number: int, coro: Work[T], **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _Handle(asyncio.Handle):
    __slots__ = ("machine",)
    machine: Machine | None


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ("machine",)
    machine: Machine | None


class Machine:
    """Tasks, timers and callbacks that pause or crash together; created by
    `VirtualLoop.machine`."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.paused = False
        self.crashed = False
        self.steps = 0
        self._loop = loop
        self._context = copy_context()
        self._context.run(_machine.set, self)
        self._kept: list[asyncio.Handle] = []
        self._fate: tuple[int, Callable[[], None]] | None = None

    @property
    def context(self) -> Context:
        return self._context.copy()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.create_task(work, context=self.context)

    def do(self, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        self._loop.call_soon(callback, *args, context=self.context)

    def after(self, steps: int, then: Callable[[], None]) -> None:
        """Call `then`, outside of the machine, after N more of its steps."""
        self._fate = self.steps + steps, then

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        kept, self._kept = self._kept, []
        self._loop.run_again(kept)

    def crash(self) -> None:
        self.crashed = True

    def may_run(self, handle: asyncio.Handle) -> bool:
        """Whether one of its callbacks may run now; if not, the callback is queued.

        Those of a crashed machine are kept too: cleaning up their coroutines would run ``finally``
        blocks.
        """
        if self.crashed or self.paused:
            self._kept.append(handle)
            return False
        self.steps += 1
        if self._fate is not None and self.steps > self._fate[0]:
            then, self._fate = self._fate[1], None
            then()
            return self.may_run(handle)
        return True


def current_machine() -> Machine | None:
    """The machine that runs a callback now; None outside of all machines."""
    return _machine.get()


def new_loop(now: float = 0.0) -> VirtualLoop:
    """Create a loop; its clock starts at `now`."""
    return VirtualLoop(now)  # type: ignore[abstract]  # it has no sockets, pipes or signals


class _IdleMethods(asyncio.AbstractEventLoop):
    """The methods that asyncio calls on a loop and that have nothing to do on virtual time."""

    async def shutdown_asyncgens(self) -> None:
        pass

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        pass

    def get_task_factory(self) -> None:
        return None

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The next turn drops a cancelled timer."""


class VirtualLoop(_IdleMethods):
    def __init__(self, now: float = 0.0) -> None:
        self.steps = 0
        self.errors: list[dict[str, Any]] = []
        self._now = now
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, _TimerHandle]] = []
        self._numbers = count()
        self._tasks: list[VirtualTask[Any]] = []
        self._prune_at = PRUNE_TASKS
        self._error: BaseException | None = None
        self._stopping = False
        self._running = False
        self._closed = False

    def machine(self, name: str) -> Machine:
        return Machine(self, name)

    # -- running ------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to completion, outside of all machines.

        Raises:
            NothingToDo: it waits for something that cannot happen.
        """
        result: T = self.run_until_complete(work)
        return result

    def run_until_complete(self, future: Any) -> Any:
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(self._stop_at_end)
        try:
            self.run_forever()
        finally:
            task.remove_done_callback(self._stop_at_end)
        return task.result()

    def _stop_at_end(self, task: asyncio.Future[Any]) -> None:
        self.stop()

    def run_forever(self) -> None:
        if self._running:
            raise RuntimeError("the loop is already running")
        self._running, self._stopping = True, False
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._running = False
            asyncio._set_running_loop(before)

    def _turn(self) -> None:
        """Run the callbacks that are ready now; those that become ready run in the next turn."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise NothingToDo("no callback is ready and no timer is set")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            machine: Machine | None = handle.machine  # type: ignore[attr-defined]
            if machine is not None and not machine.may_run(handle):
                continue
            self.steps += 1
            handle._run()
            if self._error is not None:
                error, self._error = self._error, None
                raise error

    def fail(self, error: BaseException) -> None:
        self._error = self._error or error

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Drop everything. Unfinished coroutines are closed outside of all machines."""
        self._closed = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about coroutines created while others are closed
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False
                    with suppress(BaseException):
                        task.get_coro().close()
        self._tasks.clear()
        self._ready.clear()
        self._timers.clear()

    # -- callbacks ----------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        handle.machine = _machine.get() if context is None else context.get(_machine)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = _TimerHandle(when, callback, args, self, context)
        handle.machine = _machine.get() if context is None else context.get(_machine)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def run_again(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    # -- futures, tasks, executors --------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Work[T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        number = next(self._numbers)
        task = VirtualTask(number, coro, loop=self, name=name or f"task {number}", context=context)
        self._tasks.append(task)
        if len(self._tasks) >= self._prune_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._prune_at = len(self._tasks) + PRUNE_TASKS
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    # -- errors -------------------------------------------------------------------

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)
