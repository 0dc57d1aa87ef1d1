"""Ending tasks for certain, and what else there is to know of how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from millwheel.clock import Clock
from millwheel.errors import InvariantBroken, NotTheSameAgain, StoreError

T = TypeVar("T")

PATIENCE_SECONDS = 0.1
"""After this long a task that was cancelled and goes on is cancelled again."""


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, whatever became of them.

    One cancellation is not always enough: before Python 3.12 ``asyncio.wait_for`` swallows
    one that comes as its awaitable is done, and the connection pool waits in it; so may user
    code.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=PATIENCE_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()  # looked at: it is told elsewhere


def is_ours(error: BaseException) -> bool:
    """Whether an exception means that the engine must stop, not that user code failed."""
    if isinstance(error, (InvariantBroken, NotTheSameAgain, StoreError)):
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


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
