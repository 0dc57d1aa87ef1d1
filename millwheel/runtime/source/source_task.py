"""The task of an injector's interval: it reads a partition, or looks for partitions.

Both kinds (`millwheel.runtime.source.injector`, `millwheel.runtime.source.partition_discovery`) own their interval
by a lease as every interval is owned, store a position with its commits, and hold its low watermark.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from typing import Any

from millwheel.runtime.environment import Environment
from millwheel.runtime.interval.interval import Interval
from millwheel.runtime.process.tasks import end
from millwheel.runtime.source.blame import SourceBlamed
from millwheel.runtime.source.pacing import Flow
from millwheel.runtime.source.pausing import PausedInjectors
from millwheel.sources import Lag


class SourceTask(ABC):
    """What the engine asks of the task of an injector's interval."""

    rows = 0
    """Rows read since this worker took the interval."""
    ended = False
    """No row will ever follow."""

    def __init__(self, env: Environment, paused: PausedInjectors, interval: Interval) -> None:
        self._env = env
        self._paused = paused
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def start(self, *, reading: bool = True) -> None:
        """Open the source at the stored position, and work on it unless told not to.

        Raises:
            InputError: the source is missing, or has changed.
        """

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = self._env.spawn(work, f"source of {self._interval.name}")

    def _blamed(self, called: object, method: str) -> SourceBlamed:
        """A block that calls a method of the source, which is blamed for what it raises."""
        return SourceBlamed(self._interval.step.name, called, method)

    async def stop(self) -> None:
        """Work no more; the source stays open, so that a last commit can store the position."""
        task, self._task = self._task, None
        if task is not None:
            await end([task])

    @abstractmethod
    def close(self) -> None:
        """Close the source."""

    @property
    def interval(self) -> Interval:
        """The interval that it works on."""
        return self._interval

    @property
    def paused(self) -> bool:
        """Whether an operator wants it to rest."""
        return self._interval.step.id in self._paused

    def resume(self) -> None:
        """Go on after a pause."""
        return

    @property
    @abstractmethod
    def has_nothing(self) -> bool:
        """Whether there is nothing to do: not now, or never again."""

    @abstractmethod
    def position(self) -> dict[str, Any]:
        """What is stored of it with each commit of its interval."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether others do not wait for it in the watermark of the stream."""

    @abstractmethod
    def advance_idle(self, watermark: int, percentiles: Mapping[float, int | None]) -> None:
        """Promise, while idle, what all that are not idle have stored."""

    def follow(self) -> None:
        """Promise again: a partition of the source has stored a low watermark."""
        return

    def acknowledged(self) -> None:
        """Some of its rows are durable at their readers."""
        return

    def tend(self) -> None:
        """See whether it may read on; called every now and then."""
        return

    def read_up_to(self, offset: int) -> None:
        """Read on as far as a row, whatever the cap is."""
        return

    @abstractmethod
    def progress(self) -> float | None:
        """The share of the input read, 0 to 1; None where there is no end."""

    @abstractmethod
    def lag(self) -> Lag:
        """How much waits to be read."""

    @abstractmethod
    def flow(self) -> Flow | None:
        """How much is on its way, and for how long; None: it sends nothing."""
