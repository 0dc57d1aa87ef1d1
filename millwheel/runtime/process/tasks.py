"""Reliable ending of tasks, and classification of the errors that end them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

from millwheel.core.clock import Clock
from millwheel.core.codec import reason
from millwheel.errors import (
    InvariantBroken,
    MigrationFailed,
    NotTheSameAgain,
    StoreError,
    UserCodeError,
)

T = TypeVar("T")

PATIENCE_SECONDS = 0.1
"""Time after which a cancelled task that still runs is cancelled again."""


_ending: WeakSet[asyncio.Task[Any]] = WeakSet()


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until all have ended, with any outcome.

    Once is not enough: before Python 3.12 ``asyncio.wait_for``, which the connection pool uses,
    swallows a cancellation that arrives when its awaitable is done.
    """
    left = set(tasks)
    _ending.update(left)
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=PATIENCE_SECONDS)
        for task in done:
            if not task.cancelled():
                # retrieved, so that asyncio does not log it: another place reports it
                task.exception()


def is_ours(error: BaseException) -> bool:
    """Whether an exception belongs to the engine rather than being a failure of user code.

    When the engine ends a task, any error with which user code reacts counts as the engine's.
    SystemExit and KeyboardInterrupt are failures of user code: `sys.exit` does not end a worker,
    and Ctrl-C does not arrive as an exception (`services/interruption.py`).
    """
    task = asyncio.current_task()
    if _is_grave(error) or task in _ending:
        return True
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def raise_ours(error: BaseException) -> NoReturn:
    """SystemExit and KeyboardInterrupt become CancelledError: they would end the event loop, and
    with it the tasks that close connections and files."""
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        raise asyncio.CancelledError(reason(error)) from error
    raise error


def failure_of(task: asyncio.Task[Any]) -> BaseException | None:
    """The error of a task of user code; None also if the engine was ending the task and the error
    is not grave."""
    error = None if task.cancelled() else task.exception()
    return error if error is not None and (_is_grave(error) or task not in _ending) else None


def _is_grave(error: BaseException) -> bool:
    return isinstance(error, (InvariantBroken, NotTheSameAgain, MigrationFailed, StoreError))


async def in_own_task(work: Awaitable[T]) -> T:
    """Await user code in a task of its own, so that it can cancel no other task.

    Raises:
        UserCodeError: the user code has cancelled its task.
        SystemExit, KeyboardInterrupt: the user code has raised it.
    """

    exits: list[BaseException] = []

    async def run() -> T:
        try:
            return await work
        except (SystemExit, KeyboardInterrupt) as error:
            exits.append(error)  # a task that ends with this error would end the event loop
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
        task.exception()  # retrieved, so that asyncio does not log it: the original is raised below
        raise exits[0]
    return task.result()


async def within(clock: Clock, seconds: float, work: Coroutine[Any, Any, T]) -> T:
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
    """Ignores errors of `work`."""
    working = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    waiting.cancel()
    await asyncio.gather(working, waiting, return_exceptions=True)
