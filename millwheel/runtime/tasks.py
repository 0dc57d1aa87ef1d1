"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

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
