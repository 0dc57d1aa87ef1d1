from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from millwheel.core.source_progress import SourceProgress
from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.process.tasks import end
from millwheel.runtime.source.blame import SourceBlamed
from millwheel.runtime.source.pacing import Flow
from millwheel.runtime.source.pausing import PausedInjectors
from millwheel.sources import Lag

Work = Callable[[], Coroutine[Any, Any, None]]


class SourceTask(ABC):
    """The task of an injector's interval: it reads a partition, or discovers partitions.

    Both kinds store a position with the commits of their interval, and hold its low watermark.
    """

    rows = 0
    ended = False

    def __init__(self, env: Environment, paused: PausedInjectors, interval: Interval) -> None:
        self._env = env
        self._paused = paused
        self._interval = interval
        self._label = interval.step.node.label
        self._task: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._orders = 0
        """Number of calls of `start` and `stop`."""

    async def start(self, *, reading: bool = True) -> None:
        """Open the source at the stored position, and read it.

        A later `start` or `stop` supersedes this one while the source is being opened: the lane may
        recover meanwhile, and its intervals start over.

        Raises:
            InputError: the source is missing, or acknowledged rows of it have changed.
        """
        self._orders += 1
        order = self._orders
        async with self._opening:
            work = await self._open(lambda: order == self._orders)
            if work is not None and reading:
                self._task = self._env.spawn(work(), f"source of {self._interval.name}")

    @abstractmethod
    async def _open(self, is_current: Callable[[], bool]) -> Work | None:
        """Open the source; returns the work of the task, or None if there is nothing to read, or
        `is_current` is false afterwards: then the source is closed again."""

    def _blamed(self, called: object, method: str) -> SourceBlamed:
        """Exceptions in it are the source's fault."""
        return SourceBlamed(self._label, called, method)

    async def stop(self) -> None:
        """The source stays open, so that a last commit can store the position."""
        self._orders += 1
        task, self._task = self._task, None
        if task is not None:
            await end([task])

    @abstractmethod
    def close(self) -> None: ...

    @property
    def interval(self) -> Interval:
        return self._interval

    @property
    def paused(self) -> bool:
        return self._interval.step.id in self._paused

    def resume(self) -> None:
        return

    @property
    @abstractmethod
    def has_nothing(self) -> bool:
        """There is no work now: the task waits for the source, or has ended."""

    @abstractmethod
    def position(self) -> SourceProgress: ...

    @property
    @abstractmethod
    def idle(self) -> bool:
        """The stream's watermark does not wait for this task."""

    @abstractmethod
    def advance_idle(self, watermark: int) -> None:
        """Promise, while idle, the watermark that all tasks that are not idle have stored."""

    def follow(self) -> None:
        """A partition of the source has stored a low watermark."""
        return

    def acknowledged(self) -> list[float]:
        """Note that some rows are durable at their readers; returns the seconds since each reading
        of them."""
        return []

    def tend(self) -> None:
        return

    def read_up_to(self, offset: int) -> None:
        """Read up to and including a row, whatever the cap is."""
        return

    @abstractmethod
    def progress(self) -> float | None:
        """Share of the input that was read, 0 to 1; None if the input has no end."""

    @abstractmethod
    def lag(self) -> Lag: ...

    @abstractmethod
    def flow(self) -> Flow | None:
        """Figures for metrics; None if the task sends nothing."""
