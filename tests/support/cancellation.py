"""User code that cancels itself, or awaits a cancelled task."""

from __future__ import annotations

import asyncio


async def cancel_oneself(*, await_it: bool = True) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    if await_it:
        await asyncio.sleep(0)


async def await_what_is_cancelled() -> None:
    inner = asyncio.create_task(asyncio.sleep(0))
    inner.cancel()
    await inner
