"""Ending tasks for certain, and what else there is to know of how they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from millwheel.clock import Clock
from millwheel.codec import reason
from millwheel.errors import (
    InvariantBroken,
    MigrationFailed,
    NotTheSameAgain,
    StoreError,
    UserCodeError,
)

T = TypeVar("T")

PATIENCE_SECONDS = 0.1
"""After this long a task that was cancelled and goes on is cancelled again."""


_ending: WeakSet[asyncio.Task[Any]] = WeakSet()
"""Tasks that somebody wants to end."""


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, whatever became of them.

    One cancellation is not always enough: before Python 3.12 ``asyncio.wait_for`` swallows
    one that comes as its awaitable is done, and the connection pool waits in it; so may user
    code.
    """
    left = set(tasks)
    _ending.update(left)
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=PATIENCE_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()  # looked at: it is told elsewhere


def is_ours(error: BaseException) -> bool:
    """Whether an exception means that the engine must stop, not that user code failed: also what
    user code makes of it that its task is to end.

    SystemExit and KeyboardInterrupt are failures of user code: a worker is not ended by `sys.exit`, and
    Ctrl-C does not come as an exception while one runs (`services/interruption.py`).
    """
    task = asyncio.current_task()
    if _is_grave(error) or task in _ending:
        return True
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def raise_ours(error: BaseException) -> NoReturn:
    """Raise an error that `is_ours`, which ends the task.

    Raises:
        CancelledError: it is SystemExit or KeyboardInterrupt, which would end the event loop, and with it
            the tasks that close what is open.
    """
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        raise asyncio.CancelledError(reason(error)) from error
    raise error


def failure_of(task: asyncio.Task[Any]) -> BaseException | None:
    """Why a task of user code has ended that nobody wanted to end; None: there is nothing to tell."""
    error = None if task.cancelled() else task.exception()
    return error if error is not None and (_is_grave(error) or task not in _ending) else None


def _is_grave(error: BaseException) -> bool:
    return isinstance(error, (InvariantBroken, NotTheSameAgain, MigrationFailed, StoreError))


async def in_own_task(work: Awaitable[T]) -> T:
    """Await user code in a task of its own: no other is harmed if it cancels the task that it runs in.

    Whoever is to end meanwhile ends when that task has.

    Raises:
        UserCodeError: it has cancelled its task.
        SystemExit, KeyboardInterrupt: it has raised them.
    """

    exits: list[BaseException] = []

    async def run() -> T:
        try:
            return await work
        except (SystemExit, KeyboardInterrupt) as error:
            exits.append(error)  # a task that ends with it ends the whole event loop
            raise UserCodeError(reason(error)) from error

    task = asyncio.create_task(run())
    try:
        await asyncio.wait((task,))
    finally:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await end((task,))
    if task.cancelled() and task.cancelling():
        raise UserCodeError("user code has cancelled the task that it runs in")
    if exits:
        task.exception()  # looked at: it stands for the one that is raised
        raise exits[0]
    return task.result()


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`, or cancel it after so many seconds of the clock.

    Raises:
        TimeoutError: it was cancelled.
    """
    working = asyncio.create_task(work)
    alarm = asyncio.create_task(clock.sleep(seconds))
    try:
        await asyncio.wait((working, alarm), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise TimeoutError(f"not done within {seconds:g} seconds")
        return working.result()
    finally:
        await end((working, alarm))


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do some work to its end, or until `event` is set; how it ends does not matter."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    waiting.cancel()
    await asyncio.gather(working, waiting, return_exceptions=True)
