"""Time as a parameter: the engine never asks the operating system directly."""

from __future__ import annotations

import asyncio
import heapq
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> int:
        """Wall time in microseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """A clock that a test advances; it does not move by itself."""

    def __init__(self, start: int = 1_700_000_000_000_000) -> None:
        self._now = start
        self._start = start
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start) / 1e6

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._now + int(seconds * 1e6), self._count, future))
        await future

    def advance(self, seconds: float) -> None:
        self._now += int(seconds * 1e6)
        while self._sleepers and self._sleepers[0][0] <= self._now:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)

    def until_next(self, limit: float) -> float:
        """Seconds until the first sleeper wakes, at most `limit`."""
        due = (self._sleepers[0][0] - self._now) / 1e6 if self._sleepers else limit
        return min(due, limit)
