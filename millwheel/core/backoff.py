from __future__ import annotations

import math

from millwheel.core.clock import Clock

FIRST_SECONDS = 0.05

LONGEST_SECONDS = 2.0


class Backoff:
    """Pauses in seconds, doubled until patience ends."""

    def __init__(
        self,
        clock: Clock,
        *,
        first: float = FIRST_SECONDS,
        longest: float = LONGEST_SECONDS,
        patience: float = math.inf,
    ) -> None:
        self._clock = clock
        self._first = self._pause = first
        self._longest = longest
        self._deadline = clock.monotonic() + patience

    @property
    def is_over(self) -> bool:
        return self._clock.monotonic() > self._deadline

    def restart(self) -> None:
        self._pause = self._first

    async def wait(self, share: float = 1.0) -> None:
        pause, self._pause = self._pause, min(2 * self._pause, self._longest)
        await self._clock.sleep(pause * share)
